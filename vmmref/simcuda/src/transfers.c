/* Copies and memsets: what they mean for the caller, by where the two addresses point. */
#include <stdlib.h>
#include <string.h>

#include "sim.h"

static CUresult stage(Piece *piece, const void *bytes)
{
    size_t offset = piece->destination & 7, room = piece->bytes + offset;
    if (room > INLINE_BYTES && (piece->staged = malloc(room)) == NULL) return CUDA_ERROR_OUT_OF_MEMORY;
    memcpy((piece->staged ? piece->staged : piece->inline_bytes) + offset, bytes, piece->bytes);
    piece->source_place = PLACE_STAGED;
    return CUDA_SUCCESS;
}

static Place host_place(uint64_t address)
{
    Place place = place_of(address);
    return place == PLACE_UNKNOWN ? PLACE_PAGEABLE : place;
}

/* Enqueue, and wait when the caller's memory would otherwise be used behind its back. */
static CUresult submit(Stream *stream, Piece *piece, bool wait)
{
    if (!wait) return stream_submit(stream, piece);
    stream_retain(stream);
    CUresult result = stream_submit(stream, piece);
    uint64_t sequence = stream->submitted;
    if (result == CUDA_SUCCESS) result = stream_wait(stream, sequence);
    if (result == CUDA_ERROR_LAUNCH_TIMEOUT) stream_withdraw(stream, sequence);
    if (result == CUDA_SUCCESS) result = stream_take_error(stream);
    stream_drop(stream);
    return result;
}

typedef struct {
    uint64_t destination, source, bytes;
    bool to_device, from_device; /* the call says that this side is a device address */
    bool synchronous;
} Copy;

static CUresult copy(Stream *stream, Copy wanted)
{
    if (wanted.bytes == 0) return CUDA_SUCCESS;
    Place to = wanted.to_device ? place_of(wanted.destination) : host_place(wanted.destination);
    Place from = wanted.from_device ? place_of(wanted.source) : host_place(wanted.source);
    if (wanted.to_device && wanted.from_device) {
        /* The freed addresses of this driver are in quarantine and known; what is left is memory of somebody else. */
        if (to == PLACE_UNKNOWN) to = PLACE_FRAMEWORK;
        if (from == PLACE_UNKNOWN) from = PLACE_FRAMEWORK;
    }
    if (to == PLACE_UNKNOWN || from == PLACE_UNKNOWN || wanted.destination == 0 || wanted.source == 0)
        return CUDA_ERROR_INVALID_VALUE;
    Piece *piece = piece_new(VMMSIM_COPY);
    if (!piece) return CUDA_ERROR_OUT_OF_MEMORY;
    piece->destination = wanted.destination;
    piece->source = wanted.source;
    piece->bytes = wanted.bytes;
    piece->destination_place = to;
    piece->source_place = from;
    bool waits = wanted.synchronous || to == PLACE_PAGEABLE; /* so the source stays as it is until the copy has run */
    if (from == PLACE_PAGEABLE && !waits && stage(piece, (const void *)(uintptr_t)wanted.source) != CUDA_SUCCESS) {
        piece_free(piece);
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    return submit(stream, piece, waits);
}

static CUresult fill(Stream *stream, uint64_t destination, uint64_t value, unsigned width, size_t count, bool wait)
{
    if (count == 0) return CUDA_SUCCESS;
    if (destination == 0 || place_of(destination) == PLACE_UNKNOWN || count > SIZE_MAX / width)
        return CUDA_ERROR_INVALID_VALUE;
    if (destination % width != 0)
        return misuse(CUDA_ERROR_INVALID_VALUE, "memset of %u-byte words at 0x%llx, which is not aligned to them",
                      width,
                      (unsigned long long)destination);
    Piece *piece = piece_new(VMMSIM_MEMSET);
    if (!piece) return CUDA_ERROR_OUT_OF_MEMORY;
    piece->destination = destination;
    piece->destination_place = place_of(destination);
    piece->bytes = count * width;
    piece->value = value;
    piece->width = width;
    return submit(stream, piece, wait);
}

/* ---- Driver calls: a synchronous one runs on the legacy stream ---- */

static CUresult copy_on(CUstream handle, Copy wanted)
{
    Stream *stream;
    CUresult result = stream_find(handle, &stream);
    return result == CUDA_SUCCESS ? copy(stream, wanted) : result;
}

static uint64_t address_of(const void *host) { return (uint64_t)(uintptr_t)host; }

EXPORT CUresult cuMemcpy(CUdeviceptr destination, CUdeviceptr source, size_t bytes)
{
    BEGIN(cuMemcpy);
    return END(copy_on(NULL, (Copy){destination, source, bytes, false, false, true}));
}

EXPORT CUresult cuMemcpyAsync(CUdeviceptr destination, CUdeviceptr source, size_t bytes, CUstream stream)
{
    BEGIN(cuMemcpyAsync);
    return END(copy_on(stream, (Copy){destination, source, bytes, false, false, false}));
}

EXPORT CUresult cuMemcpyHtoD_v2(CUdeviceptr destination, const void *source, size_t bytes)
{
    BEGIN(cuMemcpyHtoD_v2);
    return END(copy_on(NULL, (Copy){destination, address_of(source), bytes, true, false, true}));
}

EXPORT CUresult cuMemcpyHtoDAsync_v2(CUdeviceptr destination, const void *source, size_t bytes, CUstream stream)
{
    BEGIN(cuMemcpyHtoDAsync_v2);
    return END(copy_on(stream, (Copy){destination, address_of(source), bytes, true, false, false}));
}

EXPORT CUresult cuMemcpyDtoH_v2(void *destination, CUdeviceptr source, size_t bytes)
{
    BEGIN(cuMemcpyDtoH_v2);
    return END(copy_on(NULL, (Copy){address_of(destination), source, bytes, false, true, true}));
}

EXPORT CUresult cuMemcpyDtoHAsync_v2(void *destination, CUdeviceptr source, size_t bytes, CUstream stream)
{
    BEGIN(cuMemcpyDtoHAsync_v2);
    return END(copy_on(stream, (Copy){address_of(destination), source, bytes, false, true, false}));
}

EXPORT CUresult cuMemcpyDtoD_v2(CUdeviceptr destination, CUdeviceptr source, size_t bytes)
{
    BEGIN(cuMemcpyDtoD_v2);
    return END(copy_on(NULL, (Copy){destination, source, bytes, true, true, true}));
}

EXPORT CUresult cuMemcpyDtoDAsync_v2(CUdeviceptr destination, CUdeviceptr source, size_t bytes, CUstream stream)
{
    BEGIN(cuMemcpyDtoDAsync_v2);
    return END(copy_on(stream, (Copy){destination, source, bytes, true, true, false}));
}

static CUresult fill_on(CUstream handle, uint64_t destination, uint64_t value, unsigned width, size_t count, bool wait)
{
    Stream *stream;
    CUresult result = stream_find(handle, &stream);
    return result == CUDA_SUCCESS ? fill(stream, destination, value, width, count, wait) : result;
}

EXPORT CUresult cuMemsetD8_v2(CUdeviceptr destination, unsigned char value, size_t count)
{
    BEGIN(cuMemsetD8_v2);
    return END(fill_on(NULL, destination, value, 1, count, true));
}

EXPORT CUresult cuMemsetD8Async(CUdeviceptr destination, unsigned char value, size_t count, CUstream stream)
{
    BEGIN(cuMemsetD8Async);
    return END(fill_on(stream, destination, value, 1, count, false));
}

EXPORT CUresult cuMemsetD32_v2(CUdeviceptr destination, unsigned value, size_t count)
{
    BEGIN(cuMemsetD32_v2);
    return END(fill_on(NULL, destination, value, 4, count, true));
}

EXPORT CUresult cuMemsetD32Async(CUdeviceptr destination, unsigned value, size_t count, CUstream stream)
{
    BEGIN(cuMemsetD32Async);
    return END(fill_on(stream, destination, value, 4, count, false));
}

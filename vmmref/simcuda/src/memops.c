/* Stream memory operations: wait for a word, write a word, and batches of both. */
#include "sim.h"

enum { MOST_OPERATIONS = 255, WAIT_CONDITIONS = 3 };

typedef struct {
    bool wait;
    uint64_t address, value;
    unsigned width, flags;
} MemoryOperation;

static CUresult check(const MemoryOperation *operation)
{
    const char *kind = operation->wait ? "wait" : "write";
    if (operation->wait ? (operation->flags & ~(unsigned)CU_STREAM_WAIT_VALUE_FLUSH) > WAIT_CONDITIONS
                        : operation->flags > CU_STREAM_WRITE_VALUE_NO_MEMORY_BARRIER)
        return CUDA_ERROR_INVALID_VALUE;
    if (!operation->wait && operation->flags == CU_STREAM_WRITE_VALUE_NO_MEMORY_BARRIER)
        return CUDA_ERROR_NOT_SUPPORTED; /* this version of the interface has no unordered write */
    if (operation->address % operation->width != 0)
        return misuse(CUDA_ERROR_INVALID_VALUE, "stream %s of a %u-byte word at 0x%llx, which is not aligned to it",
                      kind,
                      operation->width, (unsigned long long)operation->address);
    if (operation->address == 0 || place_of(operation->address) == PLACE_UNKNOWN) return CUDA_ERROR_INVALID_VALUE;
    const Mapping *mapping = mapping_at(operation->address);
    if (operation->wait && !setting(VMMSIM_WAIT_ON_IMPORTED) && mapping && mapping->handle->allocation->imported)
        return CUDA_ERROR_NOT_SUPPORTED;
    return CUDA_SUCCESS;
}

static CUresult submit(Stream *stream, const MemoryOperation *operation)
{
    Piece *piece = piece_new(operation->wait ? VMMSIM_WAIT : VMMSIM_WRITE);
    if (!piece) return CUDA_ERROR_OUT_OF_MEMORY;
    piece->destination = operation->address;
    piece->destination_place = place_of(operation->address);
    piece->bytes = piece->width = operation->width;
    piece->value = operation->width == 4 ? (uint32_t)operation->value : operation->value;
    piece->comparison = operation->wait ? operation->flags & WAIT_CONDITIONS : 0;
    return stream_submit(stream, piece);
}

static CUresult one(CUstream handle, MemoryOperation operation)
{
    Stream *stream;
    CUresult result = stream_find(handle, &stream);
    if (result == CUDA_SUCCESS) result = check(&operation);
    return result == CUDA_SUCCESS ? submit(stream, &operation) : result;
}

EXPORT CUresult cuStreamWaitValue32_v2(CUstream stream, CUdeviceptr address, uint32_t value, unsigned flags)
{
    BEGIN(cuStreamWaitValue32_v2);
    return END(one(stream, (MemoryOperation){true, address, value, 4, flags}));
}

EXPORT CUresult cuStreamWaitValue64_v2(CUstream stream, CUdeviceptr address, uint64_t value, unsigned flags)
{
    BEGIN(cuStreamWaitValue64_v2);
    return END(one(stream, (MemoryOperation){true, address, value, 8, flags}));
}

EXPORT CUresult cuStreamWriteValue32_v2(CUstream stream, CUdeviceptr address, uint32_t value, unsigned flags)
{
    BEGIN(cuStreamWriteValue32_v2);
    return END(one(stream, (MemoryOperation){false, address, value, 4, flags}));
}

EXPORT CUresult cuStreamWriteValue64_v2(CUstream stream, CUdeviceptr address, uint64_t value, unsigned flags)
{
    BEGIN(cuStreamWriteValue64_v2);
    return END(one(stream, (MemoryOperation){false, address, value, 8, flags}));
}

/* False for the operations that order what is ordered here anyway. */
static bool unpack(const CUstreamBatchMemOpParams *entry, MemoryOperation *operation, CUresult *result)
{
    *result = CUDA_SUCCESS;
    switch (entry->operation) {
    case CU_STREAM_MEM_OP_WAIT_VALUE_32:
    case CU_STREAM_MEM_OP_WRITE_VALUE_32:
        *operation = (MemoryOperation){entry->operation == CU_STREAM_MEM_OP_WAIT_VALUE_32, entry->value.address,
                                       entry->value.value, 4, entry->value.flags};
        return true;
    case CU_STREAM_MEM_OP_WAIT_VALUE_64:
    case CU_STREAM_MEM_OP_WRITE_VALUE_64:
        *operation = (MemoryOperation){entry->operation == CU_STREAM_MEM_OP_WAIT_VALUE_64, entry->value.address,
                                       entry->value.value64, 8, entry->value.flags};
        return true;
    case CU_STREAM_MEM_OP_BARRIER:
    case CU_STREAM_MEM_OP_FLUSH_REMOTE_WRITES: return false;
    default: *result = CUDA_ERROR_INVALID_VALUE; return false;
    }
}

/* All entries are checked before the first is enqueued. */
EXPORT CUresult cuStreamBatchMemOp_v2(CUstream handle, unsigned count, CUstreamBatchMemOpParams *entries,
                                      unsigned flags)
{
    BEGIN(cuStreamBatchMemOp_v2);
    Stream *stream;
    MemoryOperation operation;
    CUresult result = stream_find(handle, &stream);
    if (result == CUDA_SUCCESS && (flags != 0 || count > MOST_OPERATIONS || (count && !entries)))
        result = CUDA_ERROR_INVALID_VALUE;
    for (unsigned i = 0; i < count && result == CUDA_SUCCESS; i++)
        if (unpack(&entries[i], &operation, &result)) result = check(&operation);
    for (unsigned i = 0; i < count && result == CUDA_SUCCESS; i++)
        if (unpack(&entries[i], &operation, &result)) result = submit(stream, &operation);
    return END(result);
}

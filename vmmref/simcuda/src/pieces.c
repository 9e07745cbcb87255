/* Running the pieces of a stream: one step takes the oldest piece, if its turn has come, and carries it out. */
#include <sched.h>
#include <string.h>

#include "sim.h"

/* A large copy lets other streams and calls in between its slices, as they would run beside it on a device. */
enum { SLICE_BYTES = 64 * 1024 };

static void *pointer(uint64_t address) { return (void *)(uintptr_t)address; }

bool piece_is_memory(const Piece *piece)
{
    return piece->kind == VMMSIM_COPY || piece->kind == VMMSIM_MEMSET || piece->kind == VMMSIM_WRITE ||
           piece->kind == VMMSIM_WAIT;
}

void piece_describe(const Stream *stream, const Piece *piece, CUresult result, vmmsim_piece *info)
{
    if (!info) return;
    *info = (vmmsim_piece){.kind = piece->kind, .result = result, .stream = stream->id, .order = piece->order,
                           .destination = piece->destination, .source = piece->source, .bytes = piece->bytes,
                           .value = piece->value};
}

/* GEQ is cyclic: the signed difference, so that a counter may wrap. */
static bool satisfied(const Piece *piece)
{
    uint64_t word = load_word(pointer(piece->destination), piece->width);
    switch (piece->comparison) {
    case CU_STREAM_WAIT_VALUE_EQ: return word == piece->value;
    case CU_STREAM_WAIT_VALUE_AND: return (word & piece->value) != 0;
    case CU_STREAM_WAIT_VALUE_NOR:
        return (~(word | piece->value) & (piece->width == 4 ? 0xffffffffu : ~(uint64_t)0)) != 0;
    default:
        return piece->width == 4 ? (int32_t)((uint32_t)word - (uint32_t)piece->value) >= 0
                                 : (int64_t)(word - piece->value) >= 0;
    }
}

static CUresult device_fault(const Stream *stream, const Piece *piece, const char *why, uint64_t where)
{
    static const char *const names[] = {"", "copy", "memset", "write", "wait"};
    violation("a %s of stream 0x%llx touches 0x%llx, %s", names[piece->kind], (unsigned long long)stream->id,
              (unsigned long long)where, why);
    sim.contexts[stream->device].sticky = CUDA_ERROR_ILLEGAL_ADDRESS;
    return CUDA_ERROR_ILLEGAL_ADDRESS;
}

/* Both sides of [offset, offset + bytes) of a piece may be used by the stream's device. */
static CUresult check_slice(const Stream *stream, const Piece *piece, uint64_t offset, uint64_t bytes)
{
    const char *why = "";
    uint64_t where = 0;
    if (piece->destination_place <= PLACE_PINNED &&
        memory_check(stream->device, piece->destination + offset, bytes, piece->kind != VMMSIM_WAIT, &why, &where))
        return device_fault(stream, piece, why, where);
    if (piece->kind == VMMSIM_COPY && piece->source_place <= PLACE_PINNED &&
        memory_check(stream->device, piece->source + offset, bytes, false, &why, &where))
        return device_fault(stream, piece, why, where);
    return CUDA_SUCCESS;
}

static const unsigned char *staged_bytes(const Piece *piece)
{
    /* Staged so that both sides are aligned alike: the words of an upload are whole. */
    return (piece->staged ? piece->staged : piece->inline_bytes) + (piece->destination & 7);
}

static void run_slice(const Piece *piece, uint64_t offset, uint64_t bytes)
{
    void *destination = pointer(piece->destination + offset);
    if (piece->kind == VMMSIM_WRITE)
        store_word(destination, piece->value, piece->width);
    else if (piece->kind == VMMSIM_MEMSET)
        fill_words(destination, piece->value, piece->width, bytes);
    else if (piece->source_place == PLACE_STAGED)
        copy_words(destination, staged_bytes(piece) + offset, bytes);
    else
        copy_words(destination, pointer(piece->source + offset), bytes);
}

static CUresult run_memory(Stream *stream, const Piece *piece)
{
    if (piece->kind == VMMSIM_WAIT) return CUDA_SUCCESS; /* satisfied, or it would not have its turn */
    CUresult result = CUDA_SUCCESS;
    for (uint64_t offset = 0; offset < piece->bytes && result == CUDA_SUCCESS && !stream->cancelled;) {
        uint64_t bytes = piece->bytes - offset < SLICE_BYTES ? piece->bytes - offset : SLICE_BYTES;
        result = check_slice(stream, piece, offset, bytes);
        if (result != CUDA_SUCCESS) break;
        run_slice(piece, offset, bytes);
        offset += bytes;
        if (stream->stepped || offset == piece->bytes) continue;
        pthread_mutex_unlock(&sim.lock);
        sched_yield();
        pthread_mutex_lock(&sim.lock);
    }
    return result;
}

static void run_host_function(const Piece *piece)
{
    CUhostFn function = piece->function;
    void *user_data = piece->user_data;
    pthread_mutex_unlock(&sim.lock);
    in_host_function = true;
    function(user_data);
    in_host_function = false;
    pthread_mutex_lock(&sim.lock);
}

/* Its turn has come. A wait on memory that is gone "runs" too, and fails. */
bool piece_ready(const Stream *stream, const Piece *piece)
{
    if (sim.contexts[stream->device].sticky != CUDA_SUCCESS) return true;
    if (piece->kind == VMMSIM_EVENT_WAIT)
        return piece->dependency->done >= piece->dependency_sequence || piece->dependency->cancelled;
    if (piece->kind != VMMSIM_WAIT) return true;
    const char *why;
    uint64_t where;
    return memory_check(stream->device, piece->destination, piece->width, false, &why, &where) != CUDA_SUCCESS ||
           satisfied(piece);
}

static CUresult run(Stream *stream, Piece *piece)
{
    Context *context = &sim.contexts[stream->device];
    if (context->sticky != CUDA_SUCCESS) return context->sticky; /* the context is lost: nothing has an effect */
    if (piece_is_memory(piece)) {
        bool sticky;
        CUresult result = check_slice(stream, piece, 0, piece->bytes < SLICE_BYTES ? piece->bytes : SLICE_BYTES);
        if (result != CUDA_SUCCESS) return result;
        result = fault_on_piece(&sticky);
        if (result == CUDA_SUCCESS) return run_memory(stream, piece);
        if (sticky) context->sticky = result;
        if (stream->error == CUDA_SUCCESS) stream->error = result;
        return result;
    }
    if (piece->kind == VMMSIM_EVENT_RECORD) event_ran(piece->event, stream, piece->sequence);
    if (piece->kind == VMMSIM_HOST_FUNCTION) run_host_function(piece);
    return CUDA_SUCCESS;
}

int stream_step(Stream *stream, vmmsim_piece *info)
{
    Piece *piece = stream->head;
    if (!piece) return VMMSIM_EMPTY;
    if (stream->running || !piece_ready(stream, piece)) {
        piece_describe(stream, piece, CUDA_SUCCESS, info);
        return VMMSIM_BLOCKED;
    }
    stream_retain(stream); /* the last piece of a destroyed stream ends it */
    stream->running = true;
    CUresult result = run(stream, piece);
    stream->running = false;
    piece_describe(stream, piece, result, info);
    stream_pop(stream);
    stream_drop(stream);
    return VMMSIM_RAN;
}

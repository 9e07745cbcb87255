/*
 * Streams: their numbers and their life.
 *
 * A piece has a sequence number within its stream; a stream counts what it has done. "Wait for the work so far" is then
 * a comparison of two numbers, and an event is a stream with a number.
 */
#include <stdlib.h>

#include "sim.h"

/* ---- Life of a stream ---- */

static Stream *stream_new(int device, unsigned flags, int priority)
{
    Stream *stream = calloc(1, sizeof *stream);
    if (!stream) return NULL;
    *stream = (Stream){.id = 0x1000 + 16 * sim.next_id++, .device = device, .flags = flags, .priority = priority,
                       .stepped = setting(VMMSIM_MODE) == 1, .open = true, .references = 1};
    if (!map_insert(&sim.streams, stream->id, stream)) {
        free(stream);
        return NULL;
    }
    pthread_cond_init(&stream->work, NULL);
    stream->previous = sim.last_stream;
    if (sim.last_stream)
        sim.last_stream->next = stream;
    else
        sim.first_stream = stream;
    sim.last_stream = stream;
    return stream;
}

void stream_retain(Stream *stream) { stream->references++; }

void stream_drop(Stream *stream)
{
    if (--stream->references > 0) return;
    pthread_cond_destroy(&stream->work);
    free(stream);
}

/* Out of the list and the table: nothing can be asked of it any more. */
void stream_leave(Stream *stream)
{
    if (!map_find(&sim.streams, stream->id)) return;
    map_remove(&sim.streams, stream->id);
    if (stream->previous)
        stream->previous->next = stream->next;
    else
        sim.first_stream = stream->next;
    if (stream->next)
        stream->next->previous = stream->previous;
    else
        sim.last_stream = stream->previous;
    stream->previous = stream->next = NULL;
    stream_drop(stream);
}

static void stream_cancel(Stream *stream)
{
    stream->cancelled = true;
    stream->open = false;
    /* A running piece belongs to its runner, who pops it and finds the stream cancelled. */
    Piece *keep = stream->running ? stream->head : NULL;
    for (Piece *piece = keep ? keep->next : stream->head, *next; piece; piece = next) {
        next = piece->next;
        piece_free(piece);
    }
    stream->head = stream->tail = keep;
    if (keep)
        keep->next = NULL;
    else
        stream->done = stream->submitted;
    if (sim.legacy[stream->device] == stream) sim.legacy[stream->device] = NULL;
    pthread_cond_broadcast(&stream->work);
    if (!keep) stream_leave(stream);
}

void streams_cancel(int device)
{
    for (Stream *stream = sim.first_stream, *next; stream; stream = next) {
        next = stream->next;
        if (device < 0 || stream->device == device) stream_cancel(stream);
    }
    progress();
}

/* ---- Look-up ---- */

Stream *stream_numbered(uint64_t id) { return map_find(&sim.streams, id); }

CUresult stream_legacy(Stream **stream)
{
    Context *context;
    CUresult result = context_usable(&context);
    if (result != CUDA_SUCCESS) return result;
    Stream *legacy = sim.legacy[context->device];
    bool stepped = setting(VMMSIM_MODE) == 1;
    if (legacy && legacy->stepped != stepped && !legacy->head) {
        stream_cancel(legacy); /* idle, and of the other mode */
        legacy = NULL;
    }
    if (!legacy) {
        legacy = stream_new(context->device, CU_STREAM_DEFAULT, 0);
        if (!legacy) return CUDA_ERROR_OUT_OF_MEMORY;
        legacy->legacy = true;
        sim.legacy[context->device] = legacy;
    }
    *stream = legacy;
    return CUDA_SUCCESS;
}

CUresult stream_find(CUstream handle, Stream **stream)
{
    uint64_t id = (uint64_t)(uintptr_t)handle;
    if (id <= 1) return stream_legacy(stream);
    if (id == 2) return CUDA_ERROR_NOT_SUPPORTED; /* the per-thread default stream */
    Context *context;
    CUresult result = context_any(&context);
    if (result != CUDA_SUCCESS) return result;
    *stream = map_find(&sim.streams, id);
    if (!*stream || !(*stream)->open)
        return misuse(CUDA_ERROR_INVALID_HANDLE, "use of stream 0x%llx, which is destroyed or was never made",
                      (unsigned long long)id);
    return sim.contexts[(*stream)->device].sticky;
}

/* ---- Driver calls ---- */

static CUresult stream_create(CUstream *handle, unsigned flags, int priority)
{
    Context *context;
    CUresult result = context_usable(&context);
    if (result != CUDA_SUCCESS) return result;
    if (!handle || flags > CU_STREAM_NON_BLOCKING) return CUDA_ERROR_INVALID_VALUE;
    Stream *stream = stream_new(context->device, flags, priority);
    if (!stream) return CUDA_ERROR_OUT_OF_MEMORY;
    *handle = (CUstream)(uintptr_t)stream->id;
    return CUDA_SUCCESS;
}

EXPORT CUresult cuStreamCreate(CUstream *handle, unsigned flags)
{
    BEGIN(cuStreamCreate);
    return END(stream_create(handle, flags, 0));
}

EXPORT CUresult cuStreamCreateWithPriority(CUstream *handle, unsigned flags, int priority)
{
    BEGIN(cuStreamCreateWithPriority);
    return END(stream_create(handle, flags, priority));
}

/* Queued work still runs; a stepped stream can still be stepped by its number until it is empty. */
EXPORT CUresult cuStreamDestroy_v2(CUstream handle)
{
    BEGIN(cuStreamDestroy_v2);
    uint64_t id = (uint64_t)(uintptr_t)handle;
    if (id <= 2) return END(CUDA_ERROR_INVALID_HANDLE);
    Stream *stream = map_find(&sim.streams, id);
    if (!stream || !stream->open)
        return END(misuse(CUDA_ERROR_INVALID_HANDLE,
                          "cuStreamDestroy of stream 0x%llx, which is destroyed or was never made",
                          (unsigned long long)id));
    CUresult result = sim.contexts[stream->device].sticky;
    stream->open = false;
    pthread_cond_signal(&stream->work);
    if (!stream->head) stream_leave(stream);
    return END(result);
}

EXPORT CUresult cuStreamSynchronize(CUstream handle)
{
    BEGIN(cuStreamSynchronize);
    Stream *stream;
    CUresult result = stream_find(handle, &stream);
    return END(result == CUDA_SUCCESS ? stream_synchronize(stream) : result);
}

EXPORT CUresult cuStreamQuery(CUstream handle)
{
    BEGIN(cuStreamQuery);
    Stream *stream;
    CUresult result = stream_find(handle, &stream);
    if (result != CUDA_SUCCESS) return END(result);
    if (stream->head) return END(stream->error != CUDA_SUCCESS ? stream_take_error(stream) : CUDA_ERROR_NOT_READY);
    return END(stream_take_error(stream));
}

EXPORT CUresult cuStreamGetFlags(CUstream handle, unsigned *flags)
{
    BEGIN(cuStreamGetFlags);
    Stream *stream;
    CUresult result = stream_find(handle, &stream);
    if (result == CUDA_SUCCESS && !flags) result = CUDA_ERROR_INVALID_VALUE;
    if (result == CUDA_SUCCESS) *flags = stream->flags;
    return END(result);
}

EXPORT CUresult cuStreamGetPriority(CUstream handle, int *priority)
{
    BEGIN(cuStreamGetPriority);
    Stream *stream;
    CUresult result = stream_find(handle, &stream);
    if (result == CUDA_SUCCESS && !priority) result = CUDA_ERROR_INVALID_VALUE;
    if (result == CUDA_SUCCESS) *priority = stream->priority;
    return END(result);
}

EXPORT CUresult cuStreamGetCtx(CUstream handle, CUcontext *context)
{
    BEGIN(cuStreamGetCtx);
    Stream *stream;
    CUresult result = stream_find(handle, &stream);
    if (result == CUDA_SUCCESS && !context) result = CUDA_ERROR_INVALID_VALUE;
    if (result == CUDA_SUCCESS) *context = &sim.contexts[stream->device];
    return END(result);
}

EXPORT CUresult cuStreamIsCapturing(CUstream handle, int *status)
{
    BEGIN(cuStreamIsCapturing);
    Stream *stream;
    CUresult result = stream_find(handle, &stream);
    if (result == CUDA_SUCCESS && !status) result = CUDA_ERROR_INVALID_VALUE;
    if (result == CUDA_SUCCESS) *status = 0;
    return END(result);
}

static CUresult launch_host_function(CUstream handle, CUhostFn function, void *user_data)
{
    Stream *stream;
    CUresult result = stream_find(handle, &stream);
    if (result != CUDA_SUCCESS) return result;
    if (!function) return CUDA_ERROR_INVALID_VALUE;
    Piece *piece = piece_new(VMMSIM_HOST_FUNCTION);
    if (!piece) return CUDA_ERROR_OUT_OF_MEMORY;
    piece->function = function;
    piece->user_data = user_data;
    return stream_submit(stream, piece);
}

EXPORT CUresult cuLaunchHostFunc(CUstream handle, CUhostFn function, void *user_data)
{
    BEGIN(cuLaunchHostFunc);
    return END(launch_host_function(handle, function, user_data));
}

EXPORT CUresult cuLaunchHostFunc_v2(CUstream handle, CUhostFn function, void *user_data, unsigned synchronisation)
{
    BEGIN(cuLaunchHostFunc_v2);
    (void)synchronisation; /* how the driver waits for the function, not what is seen */
    return END(launch_host_function(handle, function, user_data));
}

/* Events: a stream and a sequence number, taken at the call of cuEventRecord. */
#include <stdlib.h>

#include "sim.h"

enum { EVENT_FLAGS = CU_EVENT_BLOCKING_SYNC | CU_EVENT_DISABLE_TIMING | CU_EVENT_INTERPROCESS };

void event_drop(Event *event)
{
    if (--event->references > 0) return;
    if (event->stream) stream_drop(event->stream);
    free(event);
}

void event_ran(Event *event, const Stream *stream, uint64_t sequence)
{
    /* Not when it was recorded again meanwhile: the later record is what the event stands for. */
    if (event->stream == stream && event->sequence == sequence) event->nanoseconds = now_nanoseconds();
}

void events_destroy(int device)
{
    for (size_t i = 0; i < sim.events.capacity;) {
        Event *event = sim.events.keys[i] ? sim.events.values[i] : NULL;
        if (!event || (device >= 0 && event->device != device)) {
            i++;
            continue;
        }
        map_remove(&sim.events, event->id); /* moves another entry here, so look at this place again */
        event_drop(event);
    }
}

static CUresult event_find(CUevent handle, Event **event)
{
    uint64_t id = (uint64_t)(uintptr_t)handle;
    Context *context;
    CUresult result = context_any(&context);
    if (result != CUDA_SUCCESS) return result;
    *event = map_find(&sim.events, id);
    if (!*event)
        return misuse(CUDA_ERROR_INVALID_HANDLE, "use of event 0x%llx, which is destroyed or was never made",
                      (unsigned long long)id);
    return sim.contexts[(*event)->device].sticky;
}

static bool event_complete(const Event *event)
{
    return !event->stream || event->stream->done >= event->sequence || event->stream->cancelled;
}

EXPORT CUresult cuEventCreate(CUevent *handle, unsigned flags)
{
    BEGIN(cuEventCreate);
    Context *context;
    CUresult result = context_usable(&context);
    if (result != CUDA_SUCCESS) return END(result);
    if (!handle || (flags & ~(unsigned)EVENT_FLAGS)) return END(CUDA_ERROR_INVALID_VALUE);
    if ((flags & CU_EVENT_INTERPROCESS) && !(flags & CU_EVENT_DISABLE_TIMING)) return END(CUDA_ERROR_INVALID_VALUE);
    Event *event = calloc(1, sizeof *event);
    if (!event) return END(CUDA_ERROR_OUT_OF_MEMORY);
    *event = (Event){.id = 0x2000 + 16 * sim.next_id++, .device = context->device, .flags = flags, .references = 1,
                     .nanoseconds = -1};
    if (!map_insert(&sim.events, event->id, event)) {
        free(event);
        return END(CUDA_ERROR_OUT_OF_MEMORY);
    }
    *handle = (CUevent)(uintptr_t)event->id;
    return END(CUDA_SUCCESS);
}

EXPORT CUresult cuEventDestroy_v2(CUevent handle)
{
    BEGIN(cuEventDestroy_v2);
    Event *event = map_find(&sim.events, (uint64_t)(uintptr_t)handle);
    if (!event)
        return END(misuse(CUDA_ERROR_INVALID_HANDLE,
                          "cuEventDestroy of event %p, which is destroyed or was never made", (void *)handle));
    CUresult result = sim.contexts[event->device].sticky;
    map_remove(&sim.events, event->id);
    event_drop(event);
    return END(result);
}

EXPORT CUresult cuEventRecord(CUevent handle, CUstream stream_handle)
{
    BEGIN(cuEventRecord);
    Event *event;
    Stream *stream;
    CUresult result = stream_find(stream_handle, &stream);
    if (result == CUDA_SUCCESS) result = event_find(handle, &event);
    if (result != CUDA_SUCCESS) return END(result);
    if (event->device != stream->device) return END(CUDA_ERROR_INVALID_HANDLE);
    Piece *piece = piece_new(VMMSIM_EVENT_RECORD);
    if (!piece) return END(CUDA_ERROR_OUT_OF_MEMORY);
    piece->event = event;
    event->references++;
    result = stream_submit(stream, piece);
    if (result != CUDA_SUCCESS) return END(result);
    stream_retain(stream);
    if (event->stream) stream_drop(event->stream);
    event->stream = stream;
    event->sequence = stream->submitted;
    event->nanoseconds = -1;
    return END(CUDA_SUCCESS);
}

/* Waits for the record before this call; an event never recorded is no wait at all. */
EXPORT CUresult cuStreamWaitEvent(CUstream stream_handle, CUevent handle, unsigned flags)
{
    BEGIN(cuStreamWaitEvent);
    Event *event;
    Stream *stream;
    CUresult result = stream_find(stream_handle, &stream);
    if (result == CUDA_SUCCESS) result = event_find(handle, &event);
    if (result != CUDA_SUCCESS) return END(result);
    if (flags > 1) return END(CUDA_ERROR_INVALID_VALUE);
    if (event_complete(event)) return END(CUDA_SUCCESS);
    Piece *piece = piece_new(VMMSIM_EVENT_WAIT);
    if (!piece) return END(CUDA_ERROR_OUT_OF_MEMORY);
    stream_retain(event->stream);
    piece->dependency = event->stream;
    piece->dependency_sequence = event->sequence;
    return END(stream_submit(stream, piece));
}

EXPORT CUresult cuEventQuery(CUevent handle)
{
    BEGIN(cuEventQuery);
    Event *event;
    CUresult result = event_find(handle, &event);
    if (result != CUDA_SUCCESS) return END(result);
    if (!event_complete(event)) return END(CUDA_ERROR_NOT_READY);
    return END(event->stream ? stream_take_error(event->stream) : CUDA_SUCCESS);
}

EXPORT CUresult cuEventSynchronize(CUevent handle)
{
    BEGIN(cuEventSynchronize);
    Event *event;
    CUresult result = event_find(handle, &event);
    if (result != CUDA_SUCCESS || !event->stream) return END(result);
    Stream *stream = event->stream;
    stream_retain(stream); /* the event may be recorded elsewhere while this waits */
    result = stream_wait(stream, event->sequence);
    if (result == CUDA_SUCCESS) result = stream_take_error(stream);
    stream_drop(stream);
    return END(result);
}

static CUresult event_elapsed(float *milliseconds, CUevent start_handle, CUevent end_handle)
{
    Event *start, *end;
    CUresult result = event_find(start_handle, &start);
    if (result == CUDA_SUCCESS) result = event_find(end_handle, &end);
    if (result != CUDA_SUCCESS) return result;
    if (!milliseconds) return CUDA_ERROR_INVALID_VALUE;
    if ((start->flags | end->flags) & CU_EVENT_DISABLE_TIMING || !start->stream || !end->stream)
        return CUDA_ERROR_INVALID_HANDLE;
    if (start->nanoseconds < 0 || end->nanoseconds < 0) return CUDA_ERROR_NOT_READY;
    *milliseconds = (float)(end->nanoseconds - start->nanoseconds) / 1e6f;
    return CUDA_SUCCESS;
}

EXPORT CUresult cuEventElapsedTime(float *milliseconds, CUevent start, CUevent end)
{
    BEGIN(cuEventElapsedTime);
    return END(event_elapsed(milliseconds, start, end));
}

EXPORT CUresult cuEventElapsedTime_v2(float *milliseconds, CUevent start, CUevent end)
{
    BEGIN(cuEventElapsedTime_v2);
    return END(event_elapsed(milliseconds, start, end));
}

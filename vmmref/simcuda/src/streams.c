/*
 * Streams: their numbers, their queues, and the thread that each stream of threads mode has.
 *
 * A piece has a sequence number within its stream; a stream counts what it has done. "Wait for the work so far" is then
 * a comparison of two numbers, and an event is a stream with a number.
 */
#include <stdlib.h>
#include <string.h>

#include "sim.h"

enum { FIRST_POLL_NANOSECONDS = 1000, LONGEST_POLL_NANOSECONDS = 200000, KEPT_PIECES = 256 };

static Piece *kept_pieces; /* free list: enqueueing is the hot path of the steppers */
static unsigned kept_count;

/* ---- Pieces ---- */

Piece *piece_new(vmmsim_kind kind)
{
    Piece *piece = kept_pieces;
    if (piece) {
        kept_pieces = piece->next;
        kept_count--;
    } else if ((piece = malloc(sizeof *piece)) == NULL) {
        return NULL;
    }
    memset(piece, 0, offsetof(Piece, inline_bytes));
    piece->kind = kind;
    return piece;
}

void piece_free(Piece *piece)
{
    if (piece->dependency) stream_drop(piece->dependency);
    if (piece->event) event_drop(piece->event);
    free(piece->staged);
    if (kept_count == KEPT_PIECES) {
        free(piece);
        return;
    }
    piece->next = kept_pieces;
    kept_pieces = piece;
    kept_count++;
}

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
static void stream_leave(Stream *stream)
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

void stream_pop(Stream *stream)
{
    Piece *piece = stream->head;
    stream->head = piece->next;
    if (!stream->head) stream->tail = NULL;
    stream->done = stream->cancelled ? stream->submitted : piece->sequence;
    piece_free(piece);
    progress();
    if (!stream->open && !stream->head) stream_leave(stream);
}

/* Take a queued piece back, because the call that made it failed; not when it runs at this moment. */
void stream_withdraw(Stream *stream, uint64_t sequence)
{
    Piece **link = &stream->head, *previous = NULL;
    while (*link && (*link)->sequence != sequence) {
        previous = *link;
        link = &previous->next;
    }
    Piece *piece = *link;
    if (!piece || (stream->running && piece == stream->head)) return;
    *link = piece->next;
    if (stream->tail == piece) stream->tail = previous;
    piece_free(piece);
    if (stream->head) return;
    stream->done = stream->submitted;
    progress();
    if (!stream->open) stream_leave(stream);
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

/* ---- The thread of a stream ---- */

static void worker_wait(Stream *stream, int outcome, int64_t *poll)
{
    if (outcome == VMMSIM_EMPTY) {
        pthread_cond_wait(&stream->work, &sim.lock);
        *poll = FIRST_POLL_NANOSECONDS;
    } else if (stream->head && stream->head->kind == VMMSIM_WAIT) {
        /* Another process may write the word, so look again; slower each time. */
        wait_for_progress_until(now_nanoseconds() + *poll);
        if (*poll < LONGEST_POLL_NANOSECONDS) *poll *= 2;
    } else {
        wait_for_progress();
    }
}

static void *worker(void *argument)
{
    Stream *stream = argument;
    int64_t poll = FIRST_POLL_NANOSECONDS;
    pthread_mutex_lock(&sim.lock);
    while (!stream->cancelled && (stream->open || stream->head)) {
        int outcome = stream_step(stream, NULL);
        if (stream->cancelled) break;
        if (outcome == VMMSIM_RAN)
            poll = FIRST_POLL_NANOSECONDS;
        else if (stream->open || stream->head)
            worker_wait(stream, outcome, &poll);
    }
    stream_drop(stream);
    sim.workers--;
    progress();
    pthread_mutex_unlock(&sim.lock);
    return NULL;
}

static CUresult worker_start(Stream *stream)
{
    pthread_t thread;
    pthread_attr_t attributes;
    pthread_attr_init(&attributes);
    pthread_attr_setdetachstate(&attributes, PTHREAD_CREATE_DETACHED);
    int failed = pthread_create(&thread, &attributes, worker, stream);
    pthread_attr_destroy(&attributes);
    if (failed) return CUDA_ERROR_OUT_OF_MEMORY;
    stream->has_worker = true;
    stream_retain(stream);
    sim.workers++;
    return CUDA_SUCCESS;
}

/* ---- Enqueueing ---- */

static void append(Stream *stream, Piece *piece)
{
    piece->order = sim.next_order++;
    piece->sequence = ++stream->submitted;
    piece->next = NULL;
    if (stream->tail)
        stream->tail->next = piece;
    else
        stream->head = piece;
    stream->tail = piece;
}

static CUresult append_dependency(Stream *stream, Stream *dependency)
{
    if (dependency == stream || !dependency->head) return CUDA_SUCCESS;
    Piece *piece = piece_new(VMMSIM_EVENT_WAIT);
    if (!piece) return CUDA_ERROR_OUT_OF_MEMORY;
    stream_retain(dependency);
    piece->dependency = dependency;
    piece->dependency_sequence = dependency->submitted;
    append(stream, piece);
    return CUDA_SUCCESS;
}

/* The legacy stream and the blocking streams of its device run in the order of the calls. */
static CUresult order_by_legacy_rule(Stream *stream)
{
    CUresult result = CUDA_SUCCESS;
    if (!stream->legacy) {
        Stream *legacy = sim.legacy[stream->device];
        return legacy && !(stream->flags & CU_STREAM_NON_BLOCKING) ? append_dependency(stream, legacy) : CUDA_SUCCESS;
    }
    for (Stream *other = sim.first_stream; other && result == CUDA_SUCCESS; other = other->next)
        if (other->device == stream->device && !(other->flags & CU_STREAM_NON_BLOCKING))
            result = append_dependency(stream, other);
    return result;
}

/* Takes the piece, also when it fails. */
CUresult stream_submit(Stream *stream, Piece *piece)
{
    CUresult result = stream->stepped || stream->has_worker ? CUDA_SUCCESS : worker_start(stream);
    if (result == CUDA_SUCCESS) result = order_by_legacy_rule(stream);
    if (result != CUDA_SUCCESS) {
        piece_free(piece);
        return result;
    }
    append(stream, piece);
    if (!stream->stepped) pthread_cond_signal(&stream->work);
    return CUDA_SUCCESS;
}

/* The first queued piece that uses a device or pinned range, for the checks of unmap and free. */
const Piece *stream_queued_use(uint64_t base, uint64_t size, const Stream **user)
{
    for (Stream *stream = sim.first_stream; stream; stream = stream->next)
        for (const Piece *piece = stream->head; piece; piece = piece->next) {
            bool writes = piece->destination_place <= PLACE_PINNED &&
                          range_overlaps(piece->destination, piece->bytes, base, size);
            bool reads = piece->kind == VMMSIM_COPY && piece->source_place <= PLACE_PINNED &&
                         range_overlaps(piece->source, piece->bytes, base, size);
            if (!writes && !reads) continue;
            *user = stream;
            return piece;
        }
    return NULL;
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
        return END(misuse(CUDA_ERROR_INVALID_HANDLE, "cuStreamDestroy of stream 0x%llx, which is destroyed or was never made",
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

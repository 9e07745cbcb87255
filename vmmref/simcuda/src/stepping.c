/* Control functions that run queued pieces in the caller's thread. */
#include "sim.h"

/* The lock is held afterwards when the answer is not NULL. */
static Stream *begin_stepping(uint64_t id)
{
    if (forked() || in_host_function) return NULL;
    pthread_mutex_lock(&sim.lock);
    Stream *stream = stream_numbered(id);
    if (stream && stream->stepped) return stream;
    pthread_mutex_unlock(&sim.lock);
    return NULL;
}

EXPORT int vmmsim_step(uint64_t id, vmmsim_piece *info)
{
    Stream *stream = begin_stepping(id);
    if (!stream) return VMMSIM_INVALID;
    return call_end(stream_step(stream, info));
}

/* Pieces that touch no memory, while their turn has come; the answer is that of the piece that ended this. */
static int run_bookkeeping(Stream *stream, vmmsim_piece *info)
{
    while (stream->head && !piece_is_memory(stream->head)) {
        int outcome = stream_step(stream, info);
        if (outcome != VMMSIM_RAN) return outcome;
    }
    return stream->head ? VMMSIM_RAN : VMMSIM_EMPTY;
}

EXPORT int vmmsim_step_memory(uint64_t id, vmmsim_piece *info)
{
    Stream *stream = begin_stepping(id);
    if (!stream) return VMMSIM_INVALID;
    stream_retain(stream);
    int outcome = run_bookkeeping(stream, info);
    if (outcome == VMMSIM_RAN) outcome = stream_step(stream, info);
    if (outcome == VMMSIM_RAN) run_bookkeeping(stream, NULL);
    stream_drop(stream);
    return call_end(outcome);
}

static Stream *oldest_ready(bool *any)
{
    Stream *oldest = NULL;
    *any = false;
    for (Stream *stream = sim.first_stream; stream; stream = stream->next) {
        if (!stream->stepped || !stream->head) continue;
        *any = true;
        if (oldest && oldest->head->order < stream->head->order) continue;
        if (!stream->running && piece_ready(stream, stream->head)) oldest = stream;
    }
    return oldest;
}

EXPORT int vmmsim_step_submission(vmmsim_piece *info)
{
    bool any;
    if (forked() || in_host_function) return VMMSIM_INVALID;
    pthread_mutex_lock(&sim.lock);
    Stream *stream = oldest_ready(&any);
    if (!stream) return call_end(any ? VMMSIM_BLOCKED : VMMSIM_EMPTY);
    return call_end(stream_step(stream, info));
}

EXPORT int vmmsim_peek(uint64_t id, vmmsim_piece *info)
{
    Stream *stream = begin_stepping(id);
    if (!stream) return VMMSIM_INVALID;
    if (!stream->head) return call_end(VMMSIM_EMPTY);
    piece_describe(stream, stream->head, CUDA_SUCCESS, info);
    return call_end(!stream->running && piece_ready(stream, stream->head) ? VMMSIM_RAN : VMMSIM_BLOCKED);
}

static int64_t queued(const Stream *stream)
{
    int64_t pieces = 0;
    for (const Piece *piece = stream->head; piece; piece = piece->next) pieces++;
    return pieces;
}

EXPORT int64_t vmmsim_pending(uint64_t id)
{
    if (forked()) return -1;
    pthread_mutex_lock(&sim.lock);
    const Stream *stream = stream_numbered(id);
    int64_t pieces = stream ? queued(stream) : -1;
    pthread_mutex_unlock(&sim.lock);
    return pieces;
}

EXPORT int64_t vmmsim_drain(uint64_t id)
{
    Stream *stream = begin_stepping(id);
    if (!stream) return -1;
    stream_retain(stream);
    stream_drain(stream, stream->submitted);
    int64_t left = queued(stream);
    stream_drop(stream);
    pthread_mutex_unlock(&sim.lock);
    return left;
}

EXPORT int64_t vmmsim_drain_all(void)
{
    bool any;
    int64_t left = 0;
    if (forked() || in_host_function) return -1;
    pthread_mutex_lock(&sim.lock);
    for (Stream *stream; (stream = oldest_ready(&any)) != NULL;) stream_step(stream, NULL);
    for (Stream *stream = sim.first_stream; stream; stream = stream->next)
        if (stream->stepped) left += queued(stream);
    pthread_mutex_unlock(&sim.lock);
    return left;
}

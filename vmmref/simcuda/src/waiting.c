/*
 * Callers that wait: for threads, until the stream has come that far; for stepped streams, by running the work inline.
 *
 * A stepped stream can be blocked for ever, because nobody else runs. So a drain follows what blocks it (an event's
 * stream, or a stream whose queue will write the watched word) and, when nothing can help, says so instead of hanging.
 */
#include "sim.h"

enum { LONGEST_CHAIN = 64 };

CUresult stream_take_error(Stream *stream)
{
    CUresult sticky = sim.contexts[stream->device].sticky, error = stream->error;
    stream->error = CUDA_SUCCESS;
    return sticky != CUDA_SUCCESS ? sticky : error;
}

static const char *comparison_name(unsigned comparison)
{
    static const char *const names[] = {">=", "==", "AND", "NOR"};
    return names[comparison & 3];
}

/* Names the stream at the end of the chain of event waits, where the trouble is. */
static void would_wait_for_ever(const Stream *stream)
{
    const Stream *last = stream;
    for (int hops = 0; hops < LONGEST_CHAIN; hops++) {
        if (last->head->kind != VMMSIM_EVENT_WAIT || !last->head->dependency->head) break;
        last = last->head->dependency;
    }
    const Piece *piece = last->head;
    if (piece->kind == VMMSIM_WAIT)
        violation_always("would wait for ever: stream 0x%llx waits%s for a word %s %llu at 0x%llx, which holds %llu, "
                         "and no queued work that can run writes it",
                         (unsigned long long)last->id, last == stream ? "" : " (and others for it)",
                         comparison_name(piece->comparison),
                         (unsigned long long)piece->value, (unsigned long long)piece->destination,
                         (unsigned long long)load_word((void *)(uintptr_t)piece->destination, piece->width));
    else
        violation_always("would wait for ever: stream 0x%llx: the streams wait for each other",
                         (unsigned long long)stream->id);
}

/* The first piece queued on a stream that writes the word a wait looks at; 0 when there is none. */
static uint64_t writes_word(const Stream *stream, const Piece *wait)
{
    for (const Piece *piece = stream->head; piece; piece = piece->next)
        if (piece->kind != VMMSIM_WAIT && range_overlaps(piece->destination, piece->bytes, wait->destination,
                                                         wait->width))
            return piece->sequence;
    return 0;
}

static CUresult stream_drain_quietly(Stream *stream, uint64_t sequence);

/* Run the stream that was to write the word, up to that piece. */
static CUresult run_writer(const Piece *wait)
{
    Stream *next;
    for (Stream *other = sim.first_stream; other; other = next) {
        next = other->next;
        uint64_t sequence = writes_word(other, wait);
        if (sequence == 0) continue;
        if (!other->stepped) {
            wait_for_progress();
            return CUDA_SUCCESS;
        }
        if (other->draining) continue;
        stream_retain(other);
        CUresult result = stream_drain_quietly(other, sequence);
        next = other->next;
        stream_drop(other);
        if (result == CUDA_SUCCESS) return result;
    }
    return CUDA_ERROR_LAUNCH_TIMEOUT;
}

static CUresult clear_the_way(Stream *stream)
{
    Piece *piece = stream->head;
    if (stream->running) { /* another thread is inside its host function */
        wait_for_progress();
        return CUDA_SUCCESS;
    }
    if (piece->kind == VMMSIM_WAIT) return run_writer(piece);
    Stream *dependency = piece->dependency;
    if (!dependency->stepped) {
        wait_for_progress();
        return CUDA_SUCCESS;
    }
    return dependency->draining ? CUDA_ERROR_LAUNCH_TIMEOUT
                                : stream_drain_quietly(dependency, piece->dependency_sequence);
}

static CUresult stream_drain_quietly(Stream *stream, uint64_t sequence)
{
    CUresult result = CUDA_SUCCESS;
    stream_retain(stream);
    stream->draining = true;
    while (stream->done < sequence && !stream->cancelled && result == CUDA_SUCCESS)
        if (stream_step(stream, NULL) != VMMSIM_RAN) result = clear_the_way(stream);
    stream->draining = false;
    stream_drop(stream);
    return result;
}

CUresult stream_drain(Stream *stream, uint64_t sequence)
{
    return stream_drain_quietly(stream, sequence);
}

static CUresult wait_for_thread(Stream *stream, uint64_t sequence)
{
    uint64_t limit = setting(VMMSIM_TIME_LIMIT_MS);
    int64_t deadline = now_nanoseconds() + (int64_t)limit * 1000000;
    while (stream->done < sequence && !stream->cancelled) {
        /* The caller has nothing else to do, so it helps; host functions stay on the stream's own thread. */
        bool helps = stream->head && stream->head->kind != VMMSIM_HOST_FUNCTION;
        if (helps && stream_step(stream, NULL) == VMMSIM_RAN) continue;
        if (limit == 0) {
            wait_for_progress();
        } else if (!wait_for_progress_until(deadline) && stream->done < sequence) {
            violation_always("would wait for ever: stream 0x%llx has not finished its work after %llu ms",
                             (unsigned long long)stream->id, (unsigned long long)limit);
            return CUDA_ERROR_LAUNCH_TIMEOUT;
        }
    }
    return CUDA_SUCCESS;
}

/* Until the stream has done the piece with that number. Does not look at errors. */
CUresult stream_wait(Stream *stream, uint64_t sequence)
{
    stream_retain(stream);
    CUresult result;
    if (!stream->stepped) {
        result = wait_for_thread(stream, sequence);
    } else {
        result = stream_drain_quietly(stream, sequence);
        if (result == CUDA_ERROR_LAUNCH_TIMEOUT) would_wait_for_ever(stream);
    }
    if (result == CUDA_SUCCESS && stream->cancelled) result = CUDA_ERROR_CONTEXT_IS_DESTROYED;
    stream_drop(stream);
    return result;
}

CUresult stream_synchronize(Stream *stream)
{
    stream_retain(stream);
    CUresult result = stream_wait(stream, stream->submitted);
    if (result == CUDA_SUCCESS) result = stream_take_error(stream);
    stream_drop(stream);
    return result;
}

/* Every stream of the device, with the work queued before the call. A stream may come or go while the lock is free. */
CUresult device_synchronize(int device)
{
    uint64_t before = sim.next_order;
    CUresult first = CUDA_SUCCESS;
    for (Stream *stream = sim.first_stream; stream;) {
        uint64_t sequence = 0;
        for (const Piece *piece = stream->head; piece && piece->order < before; piece = piece->next)
            sequence = piece->sequence;
        if (stream->device != device || (sequence == 0 && stream->error == CUDA_SUCCESS)) {
            stream = stream->next;
            continue;
        }
        stream_retain(stream);
        CUresult result = sequence ? stream_wait(stream, sequence) : CUDA_SUCCESS;
        if (result == CUDA_SUCCESS) result = stream_take_error(stream);
        if (first == CUDA_SUCCESS) first = result;
        stream_drop(stream);
        if (result == CUDA_ERROR_LAUNCH_TIMEOUT || result == CUDA_ERROR_CONTEXT_IS_DESTROYED) return result;
        stream = sim.first_stream;
    }
    return first == CUDA_SUCCESS ? sim.contexts[device].sticky : first;
}

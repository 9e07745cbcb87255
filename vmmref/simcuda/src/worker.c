/* The thread that each stream of threads mode has; it starts with the first piece. */
#include "sim.h"

enum { FIRST_POLL_NANOSECONDS = 1000, LONGEST_POLL_NANOSECONDS = 200000 };

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

CUresult worker_start(Stream *stream)
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

/* The queue of a stream: pieces come in at the call, in the order that the driver promises,
    and leave when they have run. */
#include <stdlib.h>
#include <string.h>

#include "sim.h"

enum { KEPT_PIECES = 256 };

static Piece *kept_pieces; /* free list: enqueueing is the hot path of the steppers */
static unsigned kept_count;

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

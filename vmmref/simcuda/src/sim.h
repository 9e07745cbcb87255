/*
 * State shared by the files of the simulator, and the functions that they offer each other.
 *
 * One mutex guards everything. Driver calls hold it from call_begin to call_end; the threads of streams hold it while a
 * piece runs, and let go between the slices of a large copy, while they wait, and around a host function.
 */
#ifndef VMMSIM_SIM_H
#define VMMSIM_SIM_H

#include <pthread.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "cuda_abi.h"
#include "vmmsim.h"

#define EXPORT __attribute__((visibility("default")))
#define LATEST INT32_MAX

enum { MAX_DEVICES = 16, HOST_PAGE = 4096, INLINE_BYTES = 64 };

/* ---- Calls: one number for each row of functions.def ---- */

typedef enum {
#define FUNCTION(name, first, last, symbol) CALL_##symbol,
#include "functions.def"
#undef FUNCTION
    CALL_COUNT
} Call;

/* Refuse, count and fault a driver call; on CUDA_SUCCESS the lock is held until call_end. */
CUresult call_begin(Call call);
CUresult call_end(CUresult result);

#define BEGIN(symbol)                                        \
    do {                                                     \
        CUresult refused_ = call_begin(CALL_##symbol);       \
        if (refused_ != CUDA_SUCCESS) return refused_;       \
    } while (0)
#define END(result) call_end(result)

/* ---- Numbers to objects ---- */

typedef struct {
    uint64_t *keys; /* 0 is a free place */
    void **values;
    size_t capacity, used;
} Map;

void *map_find(const Map *map, uint64_t key);
bool map_insert(Map *map, uint64_t key, void *value);
void map_remove(Map *map, uint64_t key);
void *map_any(const Map *map);

/* ---- Address ranges, sorted, never overlapping inside one table ---- */

typedef enum {
    SPAN_RESERVED,    /* cuMemAddressReserve */
    SPAN_PLAIN,       /* the addresses of a cuMemAlloc */
    SPAN_QUARANTINED, /* given back, kept without access so that a late use is found */
    SPAN_MAPPING,     /* Mapping */
    SPAN_PINNED       /* pinned host memory */
} SpanKind;

typedef struct Span {
    uint64_t base, size;
    SpanKind kind;
    uint64_t gap;         /* addresses behind it that belong to it and stay empty */
    struct Span *younger; /* quarantine: the one given back next */
} Span;

typedef struct {
    Span **items;
    size_t count, capacity;
} SpanTable;

Span *span_at(const SpanTable *table, uint64_t address);
size_t span_first_from(const SpanTable *table, uint64_t address); /* index of the first span that ends behind address */
bool span_insert(SpanTable *table, Span *span);
void span_remove(SpanTable *table, const Span *span);

/* ---- Memory ---- */

typedef struct {
    unsigned char uuid[16];
    int descriptor; /* memfd: the bytes, then one page that names them */
    uint64_t size;
    CUmemAllocationProp properties;
    bool imported; /* made by another process */
    unsigned handles; /* a handle stays while it is referenced or mapped */
} Allocation;

/* The page behind the bytes of an allocation. */
typedef struct {
    char magic[16];
    unsigned char uuid[16];
    uint64_t size;
    CUmemAllocationProp properties;
} Trailer;

typedef struct {
    uint64_t id;
    Allocation *allocation;
    unsigned references; /* cuMemCreate, import and retain add one, cuMemRelease drops one */
    unsigned mappings;
} Handle;

typedef struct {
    Span span; /* first, so that a Span of this kind is its Mapping */
    Handle *handle;
    bool plain; /* cuMemAlloc: every device has access */
    unsigned char access[MAX_DEVICES];
    int protection; /* of the host pages */
} Mapping;

/* ---- Streams and their pieces ---- */

/* FRAMEWORK: a tensor of a framework on the simulated device. It lies in host memory that the framework owns, and is
 * device memory to whoever copies between devices: never staged, never waited for. */
typedef enum { PLACE_DEVICE, PLACE_PINNED, PLACE_PAGEABLE, PLACE_FRAMEWORK, PLACE_STAGED, PLACE_UNKNOWN } Place;

typedef struct Stream Stream;
typedef struct Event Event;

typedef struct Piece {
    struct Piece *next;
    uint64_t order, sequence;
    vmmsim_kind kind;
    uint64_t destination, source, bytes, value;
    Place destination_place, source_place;
    unsigned width, comparison; /* memset, write, wait: word size; wait: CU_STREAM_WAIT_VALUE_* */
    Stream *dependency;         /* event wait: runs when dependency has done dependency_sequence */
    uint64_t dependency_sequence;
    Event *event; /* event record */
    CUhostFn function;
    void *user_data;
    unsigned char *staged; /* bytes of a pageable source, taken at the call */
    unsigned char inline_bytes[INLINE_BYTES];
} Piece;

struct Stream {
    uint64_t id;
    int device;
    unsigned flags;
    int priority;
    bool stepped;   /* has no thread */
    bool legacy;
    bool open;      /* cuStreamDestroy has not been called */
    bool cancelled; /* dropped by a reset or with its context */
    bool has_worker;
    bool running;   /* a piece runs and the lock may be free meanwhile */
    bool draining;
    unsigned references;
    Piece *head, *tail;
    uint64_t submitted, done;
    CUresult error; /* of a piece, until a synchronise call reports it */
    pthread_cond_t work;
    Stream *previous, *next;
};

struct Event {
    uint64_t id;
    int device;
    unsigned flags;
    unsigned references;
    Stream *stream; /* of the last record; NULL before the first */
    uint64_t sequence;
    int64_t nanoseconds; /* when that record ran; -1 before */
};

typedef struct CUctx_st {
    int device;
    unsigned retained;
    CUresult sticky;
} Context;

/* ---- Everything ---- */

typedef struct {
    pthread_mutex_t lock;
    pthread_cond_t progress; /* a piece has finished, a stream was cancelled, a worker has ended */
    unsigned waiters;        /* threads waiting for progress */
    bool initialised, resolved;
    uint64_t settings[VMMSIM_OPTION_COUNT];
    uint64_t next_id, next_order;
    Map handles, streams, events;
    SpanTable spaces; /* reserved, plain and quarantined addresses */
    SpanTable memory; /* mappings and pinned memory */
    Allocation **allocations;
    size_t allocation_count, allocation_capacity;
    Stream *first_stream, *last_stream; /* open ones and destroyed ones that still have pieces, oldest first */
    Stream *legacy[MAX_DEVICES];
    unsigned workers;
    Context contexts[MAX_DEVICES];
} Simulator;

extern Simulator sim;
extern _Thread_local bool in_host_function;

bool forked(void);
uint64_t setting(vmmsim_option option);
void wait_for_progress(void);
bool wait_for_progress_until(int64_t deadline); /* CLOCK_MONOTONIC nanoseconds; false when it has passed */
void progress(void);
int64_t now_nanoseconds(void);
void remember_error(const char *format, ...) __attribute__((format(printf, 1, 2)));

/* violations.c */
void violation(const char *format, ...) __attribute__((format(printf, 1, 2)));        /* in strict mode */
void violation_always(const char *format, ...) __attribute__((format(printf, 1, 2)));
CUresult misuse(CUresult result, const char *format, ...) __attribute__((format(printf, 2, 3)));
void violations_clear(void);

/* table.c */
const char *call_name(Call call);
int call_numbered(const char *name); /* first row of that name; -1: none */

/* faults.c */
CUresult fault_on_call(Call call);
CUresult fault_on_piece(bool *sticky);
bool fault_memory_exceeded(uint64_t bytes);
void faults_clear(void);
void counters_clear(void);

/* context.c */
CUresult context_any(Context **context);   /* current context, whatever its state */
CUresult context_usable(Context **context); /* current context without a sticky error */
bool device_valid(CUdevice device);
void contexts_forget_errors(void);

/* handles.c */
Handle *handle_find(uint64_t id);
CUresult handle_create(uint64_t size, const CUmemAllocationProp *properties, Handle **handle);
CUresult handle_new(Allocation *allocation, Handle **handle);
CUresult handle_adopt(int descriptor, const Trailer *trailer, Handle **handle);
Allocation *allocation_known(const unsigned char *uuid);
bool trailer_read(int descriptor, Trailer *trailer);
CUresult handle_release(Handle *handle);
void handle_unmapped(Handle *handle);
uint64_t handle_references(void);
uint64_t handle_descriptors(void);
uint64_t handle_bytes(void);
uint64_t handle_device_bytes(int device);
void handles_reset(void);

/* addresses.c */
uint64_t address_reserve(uint64_t size, uint64_t alignment, uint64_t hint, SpanKind kind);
void address_give_back(Span *space);
void address_clear(uint64_t base, uint64_t size);
void addresses_reset(void);

/* memory.c */
CUresult mapping_add(uint64_t address, Handle *handle, Mapping **mapping);
CUresult mapping_protect(Mapping *mapping);
void mapping_remove(Mapping *mapping);
Mapping *mapping_at(uint64_t address);
Place place_of(uint64_t address);
CUresult memory_check(int device, uint64_t address, uint64_t bytes, bool write, const char **why, uint64_t *where);
void memory_reset(void);

/* plain.c, pinned.c */
void plain_counts(uint64_t *allocations);
CUresult plain_free(Span *space);
void pinned_free(Span *span);
bool range_overlaps(uint64_t base, uint64_t size, uint64_t other, uint64_t other_size);

/* streams.c */
CUresult stream_find(CUstream handle, Stream **stream);
Stream *stream_numbered(uint64_t id);
CUresult stream_legacy(Stream **stream);
void stream_retain(Stream *stream);
void stream_drop(Stream *stream);
void stream_leave(Stream *stream);
void streams_cancel(int device); /* -1: all devices */

/* queue.c */
Piece *piece_new(vmmsim_kind kind);
void piece_free(Piece *piece);
CUresult stream_submit(Stream *stream, Piece *piece);
void stream_pop(Stream *stream);
void stream_withdraw(Stream *stream, uint64_t sequence);
const Piece *stream_queued_use(uint64_t base, uint64_t size, const Stream **stream);

/* worker.c */
CUresult worker_start(Stream *stream);

/* waiting.c */
CUresult stream_take_error(Stream *stream);
CUresult stream_wait(Stream *stream, uint64_t sequence);
CUresult stream_synchronize(Stream *stream);
CUresult device_synchronize(int device);
CUresult stream_drain(Stream *stream, uint64_t sequence);

/* pieces.c */
int stream_step(Stream *stream, vmmsim_piece *info);
bool piece_ready(const Stream *stream, const Piece *piece);
bool piece_is_memory(const Piece *piece);
void piece_describe(const Stream *stream, const Piece *piece, CUresult result, vmmsim_piece *info);

/* words.c */
void copy_words(void *destination, const void *source, size_t count);
void fill_words(void *destination, uint64_t value, unsigned width, size_t count);
uint64_t load_word(const void *address, unsigned width);
void store_word(void *address, uint64_t value, unsigned width);

/* events.c */
void event_drop(Event *event);
void event_ran(Event *event, const Stream *stream, uint64_t sequence);
void events_destroy(int device); /* -1: all devices */

#endif

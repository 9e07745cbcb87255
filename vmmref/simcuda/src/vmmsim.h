/*
 * Control functions of the simulated driver: what a test can ask of it and a real driver cannot do.
 *
 * Functions that return CUresult answer CUDA_SUCCESS or a CUresult; vmmsim_last_error() then has one sentence for
 * people (of the calling thread). All functions may be called from any thread; none may be called from a host function
 * or from a forked child (CUDA_ERROR_NOT_PERMITTED, CUDA_ERROR_NOT_INITIALIZED).
 */
#ifndef VMMSIM_H
#define VMMSIM_H

#include <stddef.h>
#include <stdint.h>

#include "cuda_abi.h"

#define VMMSIM_API __attribute__((visibility("default")))

/* Settings. They come from the environment (VMMSIM_MODE=threads|stepping, VMMSIM_DEVICES, VMMSIM_MEMORY_BYTES, ...)
 * when the library is loaded, and from vmmsim_configure after that. */
typedef enum {
    VMMSIM_MODE,             /* 0 threads, 1 stepping; holds for streams created from now on */
    VMMSIM_DEVICES,          /* 1 .. 16; a device with a context or memory cannot go */
    VMMSIM_MEMORY_BYTES,     /* memory of each device */
    VMMSIM_GRANULARITY,      /* power of two, at least the host page; only while nothing exists (usage is empty) */
    VMMSIM_DRIVER_VERSION,   /* as cuDriverGetVersion answers, 13000 is 13.0; only before the first cuGetProcAddress */
    VMMSIM_STRICT,           /* 1: record violations of what the driver leaves undefined */
    VMMSIM_QUARANTINE_BYTES, /* addresses kept after cuMemAddressFree, oldest given back first; 0 turns it off */
    VMMSIM_TIME_LIMIT_MS,    /* threads mode: a synchronise call answers CUDA_ERROR_LAUNCH_TIMEOUT after it; 0 never */
    VMMSIM_HANDLE_TYPES,     /* mask of CUmemAllocationHandleType that devices support; default 1 | 8 */
    VMMSIM_WAIT_ON_IMPORTED, /* 0: a stream wait on memory imported from another process is not supported */
    VMMSIM_OPTION_COUNT
} vmmsim_option;

VMMSIM_API CUresult vmmsim_configure(int option, uint64_t value);
VMMSIM_API uint64_t vmmsim_setting(int option);
VMMSIM_API const char *vmmsim_last_error(void);
VMMSIM_API const char *vmmsim_build(void); /* which sources the library was made from */

/* Stepping. A stream created in stepping mode has no thread: its pieces run in the thread that steps. */
enum { VMMSIM_EMPTY = 0, VMMSIM_RAN = 1, VMMSIM_BLOCKED = 2, VMMSIM_INVALID = 3 };

typedef enum {
    VMMSIM_COPY = 1,
    VMMSIM_MEMSET,
    VMMSIM_WRITE,
    VMMSIM_WAIT,
    VMMSIM_EVENT_RECORD,
    VMMSIM_EVENT_WAIT, /* also the order between the legacy stream and blocking streams */
    VMMSIM_HOST_FUNCTION
} vmmsim_kind;

typedef struct {
    uint32_t kind;        /* vmmsim_kind */
    int32_t result;       /* CUDA_SUCCESS, or why the piece had no effect */
    uint64_t stream;      /* CUstream the piece was enqueued on */
    uint64_t order;       /* number of the piece over all streams, in the order of the calls, from 1 */
    uint64_t destination; /* address written (copy, memset, write) or watched (wait); 0 otherwise */
    uint64_t source;      /* address read (copy); for a copied-away pageable source the caller's address */
    uint64_t bytes;       /* bytes written, or watched by a wait */
    uint64_t value;       /* value of a memset, write or wait */
} vmmsim_piece;

/* Run the oldest piece of a stream. VMMSIM_BLOCKED: it cannot run yet (info tells which); VMMSIM_INVALID: the stream is
 * unknown or has a thread. info may be NULL everywhere. */
VMMSIM_API int vmmsim_step(uint64_t stream, vmmsim_piece *info);

/* Run bookkeeping pieces (event record, satisfied event wait, host function), one memory piece (copy, memset, write,
 * satisfied wait) and the bookkeeping pieces right behind it. Answers as vmmsim_step, for the memory piece. */
VMMSIM_API int vmmsim_step_memory(uint64_t stream, vmmsim_piece *info);

/* Run the oldest piece of all stepped streams, by the order of the calls; blocked streams are skipped. */
VMMSIM_API int vmmsim_step_submission(vmmsim_piece *info);

/* The oldest piece without running it: VMMSIM_EMPTY, VMMSIM_RAN (it could run now) or VMMSIM_BLOCKED. */
VMMSIM_API int vmmsim_peek(uint64_t stream, vmmsim_piece *info);

/* Pieces queued on a stream; -1: unknown stream. */
VMMSIM_API int64_t vmmsim_pending(uint64_t stream);

/* Run all that can run: a stream (with what it depends on), or every stepped stream. Answers the pieces left, or -1. */
VMMSIM_API int64_t vmmsim_drain(uint64_t stream);
VMMSIM_API int64_t vmmsim_drain_all(void);

/* Faults. k counts from 1, from the moment of arming. A failing call has no effect. */
VMMSIM_API CUresult vmmsim_fail_call(const char *name, uint64_t k, int result); /* name NULL: any call */
VMMSIM_API CUresult vmmsim_fail_piece(uint64_t k, int result, int sticky);      /* k-th memory piece to run */
VMMSIM_API CUresult vmmsim_limit_memory(uint64_t bytes); /* budget over all devices; UINT64_MAX: none */
VMMSIM_API void vmmsim_clear_faults(void);
VMMSIM_API uint64_t vmmsim_armed(void);                   /* faults that have not fired */
VMMSIM_API int64_t vmmsim_call_count(const char *name);   /* name NULL: all; -1: no such call */
VMMSIM_API uint64_t vmmsim_piece_count(void);             /* memory pieces run so far */

/* What exists in this process. */
typedef struct {
    uint64_t handles;      /* references that cuMemRelease must still drop */
    uint64_t mappings;
    uint64_t reservations;
    uint64_t descriptors;  /* open descriptors of simulated memory, exported or received, whoever holds them here */
    uint64_t streams;
    uint64_t events;
    uint64_t pinned;       /* pinned host allocations */
    uint64_t allocations;  /* cuMemAlloc */
    uint64_t bytes;        /* device memory kept alive by handles and mappings, imported memory too */
} vmmsim_usage_counts;

VMMSIM_API void vmmsim_usage(vmmsim_usage_counts *usage);

/* Violations: texts of what a program did and the real driver leaves undefined, oldest first. */
VMMSIM_API size_t vmmsim_violation_count(void);
VMMSIM_API size_t vmmsim_violation(size_t index, char *text, size_t capacity); /* length without the final 0 */
VMMSIM_API void vmmsim_clear_violations(void);

/* Look at device memory without queueing anything: CUDA_ERROR_INVALID_VALUE when a byte of it is not mapped. */
VMMSIM_API CUresult vmmsim_read(uint64_t address, void *bytes, size_t count);

/* Destroy everything: streams (their queues are dropped, their threads ended, callers that wait on them answer
 * CUDA_ERROR_CONTEXT_IS_DESTROYED), events, mappings, reservations, handles, pinned memory, faults, counters,
 * violations, errors. Retained primary contexts and the current context of each thread stay, because programs keep
 * those for the life of the process. Handle and stream numbers are never given out again, so that a stale one is found.
 * Exported descriptors belong to the program and stay open. Waits for a host function that is running.
 * Refused from a host function. */
VMMSIM_API CUresult vmmsim_reset(void);

#endif

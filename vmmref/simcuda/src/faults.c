/* Faults that a test arms: the k-th call, the k-th piece, a memory budget. */
#include <stdlib.h>
#include <string.h>

#include "sim.h"

typedef enum { FAULT_CALL, FAULT_PIECE } FaultKind;

typedef struct {
    FaultKind kind;
    const char *name; /* NULL: any call */
    uint64_t remaining;
    CUresult result;
    bool sticky;
} Fault;

static Fault *faults;
static size_t fault_count, fault_capacity;
static uint64_t memory_limit = UINT64_MAX;
static uint64_t pieces_run;

/* Every matching fault counts the occasion, also when another one fires on it. */
static CUresult fault_on(FaultKind kind, const char *name, bool *sticky)
{
    CUresult result = CUDA_SUCCESS;
    for (size_t i = 0; i < fault_count;) {
        Fault *fault = &faults[i];
        bool matches = fault->kind == kind && (!fault->name || strcmp(fault->name, name) == 0);
        if (!matches || --fault->remaining > 0) {
            i++;
            continue;
        }
        if (result == CUDA_SUCCESS) {
            result = fault->result;
            *sticky = fault->sticky;
        }
        memmove(faults + i, faults + i + 1, (--fault_count - i) * sizeof *faults);
    }
    return result;
}

CUresult fault_on_call(Call call)
{
    bool sticky;
    return fault_count == 0 ? CUDA_SUCCESS : fault_on(FAULT_CALL, call_name(call), &sticky);
}

CUresult fault_on_piece(bool *sticky)
{
    pieces_run++;
    *sticky = false;
    return fault_count == 0 ? CUDA_SUCCESS : fault_on(FAULT_PIECE, "", sticky);
}

bool fault_memory_exceeded(uint64_t bytes)
{
    uint64_t used = 0;
    if (memory_limit == UINT64_MAX) return false;
    for (int device = 0; device < MAX_DEVICES; device++) used += handle_device_bytes(device);
    return used + bytes > memory_limit;
}

void faults_clear(void)
{
    fault_count = 0;
    memory_limit = UINT64_MAX;
    pieces_run = 0;
}

static CUresult arm(Fault fault)
{
    if (forked()) return CUDA_ERROR_NOT_INITIALIZED;
    if (fault.remaining == 0 || fault.result == CUDA_SUCCESS) {
        remember_error("a fault needs k of at least 1 and a result other than CUDA_SUCCESS");
        return CUDA_ERROR_INVALID_VALUE;
    }
    pthread_mutex_lock(&sim.lock);
    if (fault_count == fault_capacity) {
        size_t capacity = fault_capacity ? fault_capacity * 2 : 8;
        Fault *grown = realloc(faults, capacity * sizeof *grown);
        if (!grown) return call_end(CUDA_ERROR_OUT_OF_MEMORY);
        faults = grown;
        fault_capacity = capacity;
    }
    faults[fault_count++] = fault;
    return call_end(CUDA_SUCCESS);
}

EXPORT CUresult vmmsim_fail_call(const char *name, uint64_t k, int result)
{
    int call = name ? call_numbered(name) : 0;
    if (call < 0) {
        remember_error("the simulator carries out no call named %s", name);
        return CUDA_ERROR_NOT_FOUND;
    }
    return arm((Fault){.kind = FAULT_CALL, .name = name ? call_name((Call)call) : NULL, .remaining = k,
               .result = result});
}

EXPORT CUresult vmmsim_fail_piece(uint64_t k, int result, int sticky)
{
    return arm((Fault){.kind = FAULT_PIECE, .remaining = k, .result = result, .sticky = sticky != 0});
}

EXPORT CUresult vmmsim_limit_memory(uint64_t bytes)
{
    if (forked()) return CUDA_ERROR_NOT_INITIALIZED;
    pthread_mutex_lock(&sim.lock);
    memory_limit = bytes;
    return call_end(CUDA_SUCCESS);
}

EXPORT void vmmsim_clear_faults(void)
{
    if (forked()) return;
    pthread_mutex_lock(&sim.lock);
    fault_count = 0;
    memory_limit = UINT64_MAX;
    pthread_mutex_unlock(&sim.lock);
}

EXPORT uint64_t vmmsim_armed(void)
{
    if (forked()) return 0;
    pthread_mutex_lock(&sim.lock);
    uint64_t armed = fault_count;
    pthread_mutex_unlock(&sim.lock);
    return armed;
}

EXPORT uint64_t vmmsim_piece_count(void)
{
    if (forked()) return 0;
    pthread_mutex_lock(&sim.lock);
    uint64_t count = pieces_run;
    pthread_mutex_unlock(&sim.lock);
    return count;
}

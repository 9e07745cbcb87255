/* The one state, its lock, its settings, and the gate that every driver call passes. */
#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "sim.h"

Simulator sim = {.lock = PTHREAD_MUTEX_INITIALIZER, .next_id = 1, .next_order = 1};
_Thread_local bool in_host_function;

static volatile bool is_child;
static _Thread_local char last_error[256];
static uint64_t call_counts[CALL_COUNT];

static const struct {
    const char *variable;
    uint64_t initial;
} defaults[VMMSIM_OPTION_COUNT] = {
    [VMMSIM_MODE] = {"VMMSIM_MODE", 0},
    [VMMSIM_DEVICES] = {"VMMSIM_DEVICES", 1},
    [VMMSIM_MEMORY_BYTES] = {"VMMSIM_MEMORY_BYTES", 4ull << 30},
    [VMMSIM_GRANULARITY] = {"VMMSIM_GRANULARITY", 2u << 20},
    [VMMSIM_DRIVER_VERSION] = {"VMMSIM_DRIVER_VERSION", 13000},
    [VMMSIM_STRICT] = {"VMMSIM_STRICT", 1},
    [VMMSIM_QUARANTINE_BYTES] = {"VMMSIM_QUARANTINE_BYTES", 16ull << 30},
    [VMMSIM_TIME_LIMIT_MS] = {"VMMSIM_TIME_LIMIT_MS", 0},
    [VMMSIM_HANDLE_TYPES] = {"VMMSIM_HANDLE_TYPES",
                             CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR | CU_MEM_HANDLE_TYPE_FABRIC},
    [VMMSIM_WAIT_ON_IMPORTED] = {"VMMSIM_WAIT_ON_IMPORTED", 1},
};

/* CUDA does not survive a fork; the child may not touch a lock that some thread of the parent held. */
static void remember_fork(void) { is_child = true; }

bool forked(void) { return is_child; }

uint64_t setting(vmmsim_option option) { return __atomic_load_n(&sim.settings[option], __ATOMIC_RELAXED); }

int64_t now_nanoseconds(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (int64_t)now.tv_sec * 1000000000 + now.tv_nsec;
}

__attribute__((constructor)) static void set_up(void)
{
    pthread_condattr_t monotonic;
    pthread_condattr_init(&monotonic);
    pthread_condattr_setclock(&monotonic, CLOCK_MONOTONIC);
    pthread_cond_init(&sim.progress, &monotonic);
    pthread_condattr_destroy(&monotonic);
    pthread_atfork(NULL, NULL, remember_fork);
    for (int device = 0; device < MAX_DEVICES; device++) sim.contexts[device].device = device;
    for (int option = 0; option < VMMSIM_OPTION_COUNT; option++) {
        const char *text = getenv(defaults[option].variable);
        sim.settings[option] = defaults[option].initial;
        if (!text) continue;
        uint64_t value = strtoull(text, NULL, 0);
        if (option == VMMSIM_MODE) value = strcmp(text, "stepping") == 0;
        if (vmmsim_configure(option, value) != CUDA_SUCCESS)
            fprintf(stderr, "vmmref simulator: %s=%s is ignored: %s\n", defaults[option].variable, text, last_error);
    }
}

void wait_for_progress(void)
{
    sim.waiters++;
    pthread_cond_wait(&sim.progress, &sim.lock);
    sim.waiters--;
}

bool wait_for_progress_until(int64_t deadline)
{
    struct timespec until = {.tv_sec = deadline / 1000000000, .tv_nsec = deadline % 1000000000};
    sim.waiters++;
    int answer = pthread_cond_timedwait(&sim.progress, &sim.lock, &until);
    sim.waiters--;
    return answer != ETIMEDOUT;
}

void progress(void)
{
    if (sim.waiters) pthread_cond_broadcast(&sim.progress);
}

void remember_error(const char *format, ...)
{
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(last_error, sizeof last_error, format, arguments);
    va_end(arguments);
}

EXPORT const char *vmmsim_last_error(void) { return last_error; }

CUresult call_begin(Call call)
{
    if (is_child) return CUDA_ERROR_NOT_INITIALIZED;
    pthread_mutex_lock(&sim.lock);
    if (in_host_function) {
        violation("%s called from a host function, which may not call the driver", call_name(call));
        return call_end(CUDA_ERROR_NOT_PERMITTED);
    }
    call_counts[call]++;
    CUresult fault = fault_on_call(call);
    if (fault != CUDA_SUCCESS) return call_end(fault);
    if (!sim.initialised && call != CALL_cuInit && call != CALL_cuDriverGetVersion)
        return call_end(CUDA_ERROR_NOT_INITIALIZED);
    return CUDA_SUCCESS;
}

CUresult call_end(CUresult result)
{
    pthread_mutex_unlock(&sim.lock);
    return result;
}

void counters_clear(void) { memset(call_counts, 0, sizeof call_counts); }

EXPORT int64_t vmmsim_call_count(const char *name)
{
    uint64_t count = 0;
    if (name && call_numbered(name) < 0) return -1;
    if (is_child) return 0;
    pthread_mutex_lock(&sim.lock);
    for (Call call = 0; call < CALL_COUNT; call++)
        if (!name || strcmp(name, call_name(call)) == 0) count += call_counts[call];
    pthread_mutex_unlock(&sim.lock);
    return (int64_t)count;
}

EXPORT CUresult cuInit(unsigned flags)
{
    BEGIN(cuInit);
    if (flags != 0) return END(CUDA_ERROR_INVALID_VALUE);
    sim.initialised = true;
    return END(CUDA_SUCCESS);
}

EXPORT CUresult cuDriverGetVersion(int *version)
{
    BEGIN(cuDriverGetVersion);
    if (!version) return END(CUDA_ERROR_INVALID_VALUE);
    *version = (int)setting(VMMSIM_DRIVER_VERSION);
    return END(CUDA_SUCCESS);
}

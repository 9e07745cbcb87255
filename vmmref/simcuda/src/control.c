/* Settings, usage and reset. */
#include "sim.h"

#ifndef VMMSIM_BUILD
#define VMMSIM_BUILD "vmmsim-build:unknown"
#endif

EXPORT const char *vmmsim_build(void) { return VMMSIM_BUILD; }

static void count_usage(vmmsim_usage_counts *usage)
{
    *usage = (vmmsim_usage_counts){.handles = handle_references(), .descriptors = handle_descriptors(),
                                   .events = sim.events.used, .bytes = handle_bytes()};
    plain_counts(&usage->allocations);
    for (size_t i = 0; i < sim.spaces.count; i++) usage->reservations += sim.spaces.items[i]->kind == SPAN_RESERVED;
    for (size_t i = 0; i < sim.memory.count; i++)
        if (sim.memory.items[i]->kind == SPAN_PINNED)
            usage->pinned++;
        else
            usage->mappings++;
    usage->mappings -= usage->allocations;
    for (const Stream *stream = sim.first_stream; stream; stream = stream->next)
        usage->streams += !stream->legacy;
}

EXPORT void vmmsim_usage(vmmsim_usage_counts *usage)
{
    *usage = (vmmsim_usage_counts){0};
    if (forked()) return;
    pthread_mutex_lock(&sim.lock);
    count_usage(usage);
    pthread_mutex_unlock(&sim.lock);
}

static bool nothing_exists(void)
{
    vmmsim_usage_counts usage;
    count_usage(&usage);
    return !(usage.handles | usage.mappings | usage.reservations | usage.streams | usage.events | usage.pinned |
             usage.allocations);
}

static const char *value_problem(int option, uint64_t value)
{
    switch (option) {
    case VMMSIM_DEVICES: return value >= 1 && value <= MAX_DEVICES ? NULL : "there are 1 to 16 devices";
    case VMMSIM_GRANULARITY:
        return value >= HOST_PAGE && value <= (1ull << 30) && (value & (value - 1)) == 0
                   ? NULL
                   : "the granularity is a power of two from the host page to 1 GiB";
    case VMMSIM_DRIVER_VERSION:
        return value >= 12000 && value < 100000 ? NULL
                                                : "the driver version is a number like 13000, and at least 12000";
    case VMMSIM_HANDLE_TYPES:
        return (value & ~(uint64_t)(CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR | CU_MEM_HANDLE_TYPE_FABRIC)) == 0
                   ? NULL
                   : "handle types are POSIX_FILE_DESCRIPTOR and FABRIC";
    case VMMSIM_MEMORY_BYTES: return value > 0 && value <= (1ull << 46) ? NULL : "the memory is 1 byte to 64 TiB";
    case VMMSIM_MODE:
    case VMMSIM_STRICT:
    case VMMSIM_WAIT_ON_IMPORTED: return value <= 1 ? NULL : "the value is 0 or 1";
    default: return NULL;
    }
}

/* A device that is to go may have neither a context nor memory. */
static bool devices_used_from(int first)
{
    for (int device = first; device < MAX_DEVICES; device++)
        if (sim.contexts[device].retained) return true;
    for (size_t i = 0; i < sim.allocation_count; i++)
        if (sim.allocations[i]->properties.location.id >= first) return true;
    return false;
}

static const char *state_problem(int option, uint64_t value)
{
    switch (option) {
    case VMMSIM_DEVICES:
        return devices_used_from((int)value) ? "a device with a context or with memory cannot go" : NULL;
    case VMMSIM_GRANULARITY:
        return nothing_exists() ? NULL : "the granularity cannot change while something exists; reset first";
    case VMMSIM_DRIVER_VERSION:
        return __atomic_load_n(&sim.resolved, __ATOMIC_RELAXED)
                   ? "the driver version cannot change after the first driver call"
                   : NULL;
    default: return NULL;
    }
}

EXPORT CUresult vmmsim_configure(int option, uint64_t value)
{
    if (forked()) return CUDA_ERROR_NOT_INITIALIZED;
    if (option < 0 || option >= VMMSIM_OPTION_COUNT) {
        remember_error("there is no setting %d", option);
        return CUDA_ERROR_INVALID_VALUE;
    }
    pthread_mutex_lock(&sim.lock);
    if (sim.settings[option] == value) return call_end(CUDA_SUCCESS);
    const char *problem = value_problem(option, value);
    CUresult result = problem ? CUDA_ERROR_INVALID_VALUE : CUDA_ERROR_NOT_PERMITTED;
    if (!problem) problem = state_problem(option, value);
    if (problem) {
        remember_error("%s", problem);
        return call_end(result);
    }
    __atomic_store_n(&sim.settings[option], value, __ATOMIC_RELAXED);
    return call_end(CUDA_SUCCESS);
}

EXPORT uint64_t vmmsim_setting(int option)
{
    if (forked() || option < 0 || option >= VMMSIM_OPTION_COUNT) return 0;
    pthread_mutex_lock(&sim.lock);
    uint64_t value = setting((vmmsim_option)option);
    pthread_mutex_unlock(&sim.lock);
    return value;
}

static bool busy(void)
{
    for (const Stream *stream = sim.first_stream; stream; stream = stream->next)
        if (stream->running) return true;
    return sim.workers > 0;
}

EXPORT CUresult vmmsim_reset(void)
{
    if (forked()) return CUDA_ERROR_NOT_INITIALIZED;
    if (in_host_function) {
        remember_error("reset was called from a host function");
        return CUDA_ERROR_NOT_PERMITTED;
    }
    pthread_mutex_lock(&sim.lock);
    for (streams_cancel(-1); busy(); streams_cancel(-1)) wait_for_progress();
    events_destroy(-1);
    memory_reset();
    handles_reset();
    contexts_forget_errors();
    faults_clear();
    counters_clear();
    violations_clear();
    return call_end(CUDA_SUCCESS);
}

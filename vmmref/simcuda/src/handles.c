/*
 * Physical memory and the handles that keep it: create, release, retain. sharing.c has export and import.
 *
 * An allocation is a memfd: its bytes, and behind them one page, the trailer, with a magic number, the size,
     an identity
 * and the properties. So an importer in any process learns the size and properties from the descriptor alone, and a
 * descriptor of something else is told apart. Sealed against shrinking, so that no process can make a mapping fault.
 */
#include <dirent.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <unistd.h>

#include "sim.h"

static const char trailer_magic[16] = "vmmref-sim-mem1";

Handle *handle_find(uint64_t id)
{
    Handle *handle = map_find(&sim.handles, id);
    return handle && handle->references > 0 ? handle : NULL;
}

/* ---- Allocations ---- */

static CUresult allocation_keep(Allocation *allocation)
{
    if (sim.allocation_count == sim.allocation_capacity) {
        size_t capacity = sim.allocation_capacity ? sim.allocation_capacity * 2 : 16;
        Allocation **grown = realloc(sim.allocations, capacity * sizeof(*grown));
        if (!grown) return CUDA_ERROR_OUT_OF_MEMORY;
        sim.allocations = grown;
        sim.allocation_capacity = capacity;
    }
    sim.allocations[sim.allocation_count++] = allocation;
    return CUDA_SUCCESS;
}

static void allocation_free(Allocation *allocation)
{
    for (size_t i = 0; i < sim.allocation_count; i++)
        if (sim.allocations[i] == allocation) sim.allocations[i] = sim.allocations[--sim.allocation_count];
    close(allocation->descriptor);
    free(allocation);
}

Allocation *allocation_known(const unsigned char *uuid)
{
    for (size_t i = 0; i < sim.allocation_count; i++)
        if (memcmp(sim.allocations[i]->uuid, uuid, sizeof sim.allocations[i]->uuid) == 0) return sim.allocations[i];
    return NULL;
}

static bool trailer_write(const Allocation *allocation)
{
    Trailer trailer = {.size = allocation->size, .properties = allocation->properties};
    memcpy(trailer.magic, trailer_magic, sizeof trailer.magic);
    memcpy(trailer.uuid, allocation->uuid, sizeof trailer.uuid);
    trailer.properties.win32HandleMetaData = NULL;
    return pwrite(allocation->descriptor, &trailer, sizeof trailer, (off_t)allocation->size) == sizeof trailer;
}

bool trailer_read(int descriptor, Trailer *trailer)
{
    struct stat status;
    if (fstat(descriptor, &status) != 0 || !S_ISREG(status.st_mode) || status.st_size <= HOST_PAGE) return false;
    uint64_t size = (uint64_t)status.st_size - HOST_PAGE;
    if (pread(descriptor, trailer, sizeof *trailer, (off_t)size) != sizeof *trailer) return false;
    return memcmp(trailer->magic, trailer_magic, sizeof trailer->magic) == 0 && trailer->size == size;
}

static bool memory_open(Allocation *allocation)
{
    allocation->descriptor = memfd_create("vmmref-sim", MFD_CLOEXEC | MFD_ALLOW_SEALING);
    if (allocation->descriptor < 0) return false;
    if (getrandom(allocation->uuid, sizeof allocation->uuid, 0) == sizeof allocation->uuid &&
        ftruncate(allocation->descriptor, (off_t)(allocation->size + HOST_PAGE)) == 0 && trailer_write(allocation) &&
        fcntl(allocation->descriptor, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL) == 0)
        return true;
    close(allocation->descriptor);
    return false;
}

CUresult handle_new(Allocation *allocation, Handle **handle)
{
    Handle *made = calloc(1, sizeof *made);
    if (!made) return CUDA_ERROR_OUT_OF_MEMORY;
    *made = (Handle){.id = 0x100000 + 16 * sim.next_id++, .allocation = allocation, .references = 1};
    if (!map_insert(&sim.handles, made->id, made)) {
        free(made);
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    allocation->handles++;
    *handle = made;
    return CUDA_SUCCESS;
}

static void handle_let_go(Handle *handle)
{
    Allocation *allocation = handle->allocation;
    if (handle->references > 0 || handle->mappings > 0) return;
    map_remove(&sim.handles, handle->id);
    free(handle);
    if (--allocation->handles == 0) allocation_free(allocation);
}

CUresult handle_create(uint64_t size, const CUmemAllocationProp *properties, Handle **handle)
{
    int device = properties->location.id;
    if (handle_device_bytes(device) + size > setting(VMMSIM_MEMORY_BYTES) || fault_memory_exceeded(size))
        return CUDA_ERROR_OUT_OF_MEMORY;
    Allocation *allocation = calloc(1, sizeof *allocation);
    if (!allocation) return CUDA_ERROR_OUT_OF_MEMORY;
    *allocation = (Allocation){.size = size, .properties = *properties};
    if (!memory_open(allocation)) {
        free(allocation);
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    CUresult result = allocation_keep(allocation);
    if (result == CUDA_SUCCESS) result = handle_new(allocation, handle);
    if (result != CUDA_SUCCESS) allocation_free(allocation);
    return result;
}

/* Memory that another process made, behind a descriptor that this takes. */
CUresult handle_adopt(int descriptor, const Trailer *trailer, Handle **handle)
{
    Allocation *allocation = calloc(1, sizeof *allocation);
    if (!allocation) {
        close(descriptor);
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    *allocation = (Allocation){.descriptor = descriptor, .size = trailer->size, .properties = trailer->properties,
                               .imported = true};
    memcpy(allocation->uuid, trailer->uuid, sizeof allocation->uuid);
    CUresult result = allocation_keep(allocation);
    if (result == CUDA_SUCCESS) result = handle_new(allocation, handle);
    if (result != CUDA_SUCCESS) allocation_free(allocation);
    return result;
}

CUresult handle_release(Handle *handle)
{
    handle->references--;
    handle_let_go(handle);
    return CUDA_SUCCESS;
}

void handle_unmapped(Handle *handle)
{
    handle->mappings--;
    handle_let_go(handle);
}

/* ---- Sums ---- */

uint64_t handle_references(void)
{
    uint64_t references = 0;
    for (size_t i = 0; i < sim.handles.capacity; i++)
        if (sim.handles.keys[i] != 0) references += ((Handle *)sim.handles.values[i])->references;
    return references;
}

uint64_t handle_bytes(void)
{
    uint64_t bytes = 0;
    for (size_t i = 0; i < sim.allocation_count; i++) bytes += sim.allocations[i]->size;
    return bytes;
}

/* Memory imported from another process is that process' memory. */
uint64_t handle_device_bytes(int device)
{
    uint64_t bytes = 0;
    for (size_t i = 0; i < sim.allocation_count; i++) {
        const Allocation *allocation = sim.allocations[i];
        if (allocation->properties.location.id == device && !allocation->imported) bytes += allocation->size;
    }
    return bytes;
}

static bool descriptor_is_ours(int descriptor)
{
    for (size_t i = 0; i < sim.allocation_count; i++)
        if (sim.allocations[i]->descriptor == descriptor) return true;
    return false;
}

/* Every open descriptor of simulated memory counts, a received or duplicated one too: each of them pins the memory. */
uint64_t handle_descriptors(void)
{
    uint64_t count = 0;
    DIR *directory = opendir("/proc/self/fd");
    if (!directory) return 0;
    for (const struct dirent *entry; (entry = readdir(directory)) != NULL;) {
        char target[64];
        ssize_t length = readlinkat(dirfd(directory), entry->d_name, target, sizeof target - 1);
        if (length <= 0) continue;
        target[length] = 0;
        if (strncmp(target, "/memfd:vmmref-sim", 17) == 0 && !descriptor_is_ours(atoi(entry->d_name))) count++;
    }
    closedir(directory);
    return count;
}

void handles_reset(void)
{
    for (Handle *handle; (handle = map_any(&sim.handles)) != NULL;) {
        handle->references = 0;
        handle_let_go(handle);
    }
}

/* ---- Driver calls ---- */

static CUresult properties_check(const CUmemAllocationProp *properties)
{
    int types = properties->requestedHandleTypes, supported = (int)setting(VMMSIM_HANDLE_TYPES);
    if (properties->type != CU_MEM_ALLOCATION_TYPE_PINNED) return CUDA_ERROR_INVALID_VALUE;
    if (properties->location.type != CU_MEM_LOCATION_TYPE_DEVICE) {
        bool host = properties->location.type == CU_MEM_LOCATION_TYPE_HOST ||
                    properties->location.type == CU_MEM_LOCATION_TYPE_HOST_NUMA;
        return host ? CUDA_ERROR_NOT_SUPPORTED : CUDA_ERROR_INVALID_VALUE;
    }
    if (!device_valid(properties->location.id)) return CUDA_ERROR_INVALID_DEVICE;
    if (types & ~(CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR | CU_MEM_HANDLE_TYPE_WIN32 | CU_MEM_HANDLE_TYPE_WIN32_KMT |
                  CU_MEM_HANDLE_TYPE_FABRIC))
        return CUDA_ERROR_INVALID_VALUE;
    /* As without an IMEX channel. */
    if (types & CU_MEM_HANDLE_TYPE_FABRIC & ~supported) return CUDA_ERROR_NOT_PERMITTED;
    return types & ~supported ? CUDA_ERROR_NOT_SUPPORTED : CUDA_SUCCESS;
}

EXPORT CUresult cuMemGetAllocationGranularity(size_t *granularity, const CUmemAllocationProp *properties, int option)
{
    BEGIN(cuMemGetAllocationGranularity);
    if (!granularity || !properties) return END(CUDA_ERROR_INVALID_VALUE);
    if (option != CU_MEM_ALLOC_GRANULARITY_MINIMUM && option != CU_MEM_ALLOC_GRANULARITY_RECOMMENDED)
        return END(CUDA_ERROR_INVALID_VALUE);
    CUresult result = properties_check(properties);
    if (result == CUDA_SUCCESS) *granularity = setting(VMMSIM_GRANULARITY);
    return END(result);
}

EXPORT CUresult cuMemCreate(CUmemGenericAllocationHandle *handle, size_t size, const CUmemAllocationProp *properties,
                            unsigned long long flags)
{
    BEGIN(cuMemCreate);
    if (!handle || !properties || flags != 0) return END(CUDA_ERROR_INVALID_VALUE);
    if (size == 0 || size % setting(VMMSIM_GRANULARITY) != 0)
        return END(misuse(CUDA_ERROR_INVALID_VALUE,
                          "cuMemCreate of %zu bytes, not a multiple of the granularity %llu", size,
                          (unsigned long long)setting(VMMSIM_GRANULARITY)));
    CUresult result = properties_check(properties);
    if (result != CUDA_SUCCESS) return END(result);
    Handle *made;
    result = handle_create(size, properties, &made);
    if (result == CUDA_SUCCESS) *handle = made->id;
    return END(result);
}

EXPORT CUresult cuMemRelease(CUmemGenericAllocationHandle id)
{
    BEGIN(cuMemRelease);
    Handle *handle = handle_find(id);
    if (!handle)
        return END(misuse(CUDA_ERROR_INVALID_VALUE,
                          "cuMemRelease of handle 0x%llx, which is released or was never made", id));
    return END(handle_release(handle));
}

EXPORT CUresult cuMemRetainAllocationHandle(CUmemGenericAllocationHandle *id, void *address)
{
    BEGIN(cuMemRetainAllocationHandle);
    Mapping *mapping = mapping_at((uint64_t)(uintptr_t)address);
    if (!id || !mapping || mapping->plain) return END(CUDA_ERROR_INVALID_VALUE);
    mapping->handle->references++;
    *id = mapping->handle->id;
    return END(CUDA_SUCCESS);
}

EXPORT CUresult cuMemGetAllocationPropertiesFromHandle(CUmemAllocationProp *properties, CUmemGenericAllocationHandle id)
{
    BEGIN(cuMemGetAllocationPropertiesFromHandle);
    const Handle *handle = handle_find(id);
    if (!handle)
        return END(misuse(CUDA_ERROR_INVALID_VALUE,
                          "properties asked of handle 0x%llx, which is released or was never made", id));
    if (!properties) return END(CUDA_ERROR_INVALID_VALUE);
    *properties = handle->allocation->properties;
    return END(CUDA_SUCCESS);
}

/* Mappings, and what each device may do with them. */
#include <stdlib.h>
#include <sys/mman.h>
#include <unistd.h>

#include "sim.h"

static void *pointer(uint64_t address) { return (void *)(uintptr_t)address; }

/* ---- Mappings ---- */

Mapping *mapping_at(uint64_t address)
{
    Span *span = span_at(&sim.memory, address);
    return span && span->kind == SPAN_MAPPING ? (Mapping *)span : NULL;
}

CUresult mapping_add(uint64_t address, Handle *handle, Mapping **mapping)
{
    uint64_t size = handle->allocation->size;
    Mapping *made = calloc(1, sizeof *made);
    if (!made) return CUDA_ERROR_OUT_OF_MEMORY;
    *made = (Mapping){.span = {.base = address, .size = size, .kind = SPAN_MAPPING}, .handle = handle};
    if (!span_insert(&sim.memory, &made->span)) {
        free(made);
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    if (mmap(pointer(address), size, PROT_NONE, MAP_SHARED | MAP_FIXED, handle->allocation->descriptor,
             0) == MAP_FAILED) {
        span_remove(&sim.memory, &made->span);
        free(made);
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    handle->mappings++;
    *mapping = made;
    return CUDA_SUCCESS;
}

/* Host pages allow what any device may do; which device may do it is checked when a piece runs. */
CUresult mapping_protect(Mapping *mapping)
{
    int protection = PROT_NONE;
    for (int device = 0; device < MAX_DEVICES; device++) {
        if (mapping->access[device] & 1) protection |= PROT_READ;
        if (mapping->access[device] & 2) protection |= PROT_WRITE;
    }
    if (protection != mapping->protection && mprotect(pointer(mapping->span.base), mapping->span.size, protection) != 0)
        return CUDA_ERROR_OPERATING_SYSTEM;
    mapping->protection = protection;
    return CUDA_SUCCESS;
}

void mapping_remove(Mapping *mapping)
{
    Span span = mapping->span;
    span_remove(&sim.memory, &mapping->span);
    address_clear(span.base, span.size);
    handle_unmapped(mapping->handle);
    free(mapping);
}

static CUresult map_check(uint64_t address, size_t size, size_t offset, const Handle *handle, unsigned long long flags)
{
    uint64_t granularity = setting(VMMSIM_GRANULARITY);
    if (flags != 0 || size == 0) return CUDA_ERROR_INVALID_VALUE;
    if (offset != 0) return misuse(CUDA_ERROR_INVALID_VALUE, "cuMemMap with offset %zu: the offset must be 0", offset);
    if (address % granularity != 0 || size % granularity != 0)
        return misuse(CUDA_ERROR_INVALID_VALUE,
                      "cuMemMap of %zu bytes at 0x%llx: not multiples of the granularity %llu", size,
                      (unsigned long long)address, (unsigned long long)granularity);
    if (size != handle->allocation->size)
        return misuse(CUDA_ERROR_INVALID_VALUE,
                      "cuMemMap of %zu bytes of an allocation of %llu: only whole allocations are mapped",
                      size, (unsigned long long)handle->allocation->size);
    const Span *space = span_at(&sim.spaces, address);
    if (!space || space->kind != SPAN_RESERVED || address + size > space->base + space->size)
        return misuse(CUDA_ERROR_INVALID_VALUE, "cuMemMap at 0x%llx (%zu bytes), which is not inside a reservation",
                      (unsigned long long)address, size);
    size_t index = span_first_from(&sim.memory, address);
    if (index < sim.memory.count && sim.memory.items[index]->base < address + size)
        return misuse(CUDA_ERROR_INVALID_VALUE, "cuMemMap at 0x%llx (%zu bytes), where memory is mapped already",
                      (unsigned long long)address, size);
    return CUDA_SUCCESS;
}

EXPORT CUresult cuMemMap(CUdeviceptr address, size_t size, size_t offset, CUmemGenericAllocationHandle id,
                         unsigned long long flags)
{
    BEGIN(cuMemMap);
    Mapping *mapping;
    Handle *handle = handle_find(id);
    if (!handle)
        return END(misuse(CUDA_ERROR_INVALID_VALUE, "cuMemMap of handle 0x%llx, which is released or was never made",
                          id));
    CUresult result = map_check(address, size, offset, handle, flags);
    return END(result == CUDA_SUCCESS ? mapping_add(address, handle, &mapping) : result);
}

/* [address, address + size) is made of whole mappings without a gap; *first is the index of the first. */
static bool whole_mappings(uint64_t address, uint64_t size, size_t *first)
{
    uint64_t at = address, end = address + size;
    *first = span_first_from(&sim.memory, address);
    for (size_t i = *first; at < end; i++) {
        if (i == sim.memory.count) return false;
        const Span *span = sim.memory.items[i];
        if (span->kind != SPAN_MAPPING || ((const Mapping *)span)->plain || span->base != at) return false;
        at += span->size;
    }
    return size != 0 && at == end;
}

EXPORT CUresult cuMemUnmap(CUdeviceptr address, size_t size)
{
    BEGIN(cuMemUnmap);
    size_t first;
    if (!whole_mappings(address, size, &first))
        return END(misuse(CUDA_ERROR_INVALID_VALUE,
                          "cuMemUnmap of 0x%llx (%zu bytes), which is not made of whole mappings", address, size));
    const Stream *stream;
    const Piece *piece = stream_queued_use(address, size, &stream);
    if (piece)
        violation("cuMemUnmap of 0x%llx (%zu bytes) while stream 0x%llx still has work queued on 0x%llx", address, size,
                  (unsigned long long)stream->id, (unsigned long long)piece->destination);
    while (first < sim.memory.count && sim.memory.items[first]->base < address + size)
        mapping_remove((Mapping *)sim.memory.items[first]);
    return END(CUDA_SUCCESS);
}

/* ---- Access ---- */

static CUresult access_check(const CUmemAccessDesc *wanted, size_t count)
{
    if (!wanted || count == 0) return CUDA_ERROR_INVALID_VALUE;
    for (size_t i = 0; i < count; i++) {
        if (wanted[i].location.type != CU_MEM_LOCATION_TYPE_DEVICE) return CUDA_ERROR_INVALID_VALUE;
        if (!device_valid(wanted[i].location.id)) return CUDA_ERROR_INVALID_DEVICE;
        if (wanted[i].flags != CU_MEM_ACCESS_FLAGS_PROT_NONE && wanted[i].flags != CU_MEM_ACCESS_FLAGS_PROT_READ &&
            wanted[i].flags != CU_MEM_ACCESS_FLAGS_PROT_READWRITE)
            return CUDA_ERROR_INVALID_VALUE;
    }
    return CUDA_SUCCESS;
}

EXPORT CUresult cuMemSetAccess(CUdeviceptr address, size_t size, const CUmemAccessDesc *wanted, size_t count)
{
    BEGIN(cuMemSetAccess);
    size_t first;
    CUresult result = access_check(wanted, count);
    if (result != CUDA_SUCCESS) return END(result);
    if (!whole_mappings(address, size, &first))
        return END(misuse(CUDA_ERROR_INVALID_VALUE,
                          "cuMemSetAccess of 0x%llx (%zu bytes), which is not made of whole mappings", address, size));
    for (size_t i = first; result == CUDA_SUCCESS; i++) {
        if (i == sim.memory.count || sim.memory.items[i]->base >= address + size) break;
        Mapping *mapping = (Mapping *)sim.memory.items[i];
        for (size_t j = 0; j < count; j++) mapping->access[wanted[j].location.id] = (unsigned char)wanted[j].flags;
        result = mapping_protect(mapping);
    }
    return END(result);
}

EXPORT CUresult cuMemGetAccess(unsigned long long *flags, const CUmemLocation *location, CUdeviceptr address)
{
    BEGIN(cuMemGetAccess);
    const Mapping *mapping = mapping_at(address);
    if (!flags || !location || !mapping || location->type != CU_MEM_LOCATION_TYPE_DEVICE)
        return END(CUDA_ERROR_INVALID_VALUE);
    if (!device_valid(location->id)) return END(CUDA_ERROR_INVALID_DEVICE);
    *flags = mapping->access[location->id];
    return END(CUDA_SUCCESS);
}

/* ---- Checks for pieces ---- */

Place place_of(uint64_t address)
{
    const Span *span = span_at(&sim.memory, address);
    if (span) return span->kind == SPAN_PINNED ? PLACE_PINNED : PLACE_DEVICE;
    return span_at(&sim.spaces, address) ? PLACE_DEVICE : PLACE_UNKNOWN;
}

/* A device may touch the range; if not, *why says what is wrong at *where. */
CUresult memory_check(int device, uint64_t address, uint64_t bytes, bool write, const char **why, uint64_t *where)
{
    uint64_t end = address + bytes;
    size_t index = span_first_from(&sim.memory, address);
    *where = address;
    if (end < address) {
        *why = "a range that wraps around";
        return CUDA_ERROR_ILLEGAL_ADDRESS;
    }
    for (; *where < end; index++) {
        const Span *span = index < sim.memory.count ? sim.memory.items[index] : NULL;
        if (!span || span->base > *where) {
            *why = "where no memory is mapped";
            return CUDA_ERROR_ILLEGAL_ADDRESS;
        }
        unsigned char access = span->kind == SPAN_PINNED ? 3 : ((const Mapping *)span)->access[device];
        if (!(access & (write ? 2 : 1))) {
            *why = access ? "which this device may only read" : "to which this device has no access";
            return CUDA_ERROR_ILLEGAL_ADDRESS;
        }
        *where = span->base + span->size;
    }
    return CUDA_SUCCESS;
}

EXPORT CUresult vmmsim_read(uint64_t address, void *bytes, size_t count)
{
    unsigned char *to = bytes;
    if (forked()) return CUDA_ERROR_NOT_INITIALIZED;
    pthread_mutex_lock(&sim.lock);
    while (count > 0) {
        const Span *span = span_at(&sim.memory, address);
        if (!span) break;
        uint64_t here = span->base + span->size - address;
        if (here > count) here = count;
        const Mapping *mapping = span->kind == SPAN_MAPPING ? (const Mapping *)span : NULL;
        if (!mapping || (mapping->protection & PROT_READ))
            copy_words(to, pointer(address), here);
        else if (pread(mapping->handle->allocation->descriptor, to, here,
                       (off_t)(address - span->base)) != (ssize_t)here)
            break;
        address += here;
        to += here;
        count -= here;
    }
    pthread_mutex_unlock(&sim.lock);
    if (count > 0) remember_error("no memory is mapped at 0x%llx", (unsigned long long)address);
    return count == 0 ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

void memory_reset(void)
{
    while (sim.memory.count > 0) {
        Span *span = sim.memory.items[sim.memory.count - 1];
        if (span->kind == SPAN_PINNED)
            pinned_free(span);
        else
            mapping_remove((Mapping *)span);
    }
    addresses_reset();
}

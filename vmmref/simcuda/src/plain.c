/* cuMemAlloc memory, memory sizes, and what a pointer points to. */
#include <string.h>

#include "sim.h"

enum { PLAIN_ALIGNMENT = HOST_PAGE };

EXPORT CUresult cuMemAlloc_v2(CUdeviceptr *address, size_t bytes)
{
    BEGIN(cuMemAlloc_v2);
    Context *context;
    Handle *handle;
    Mapping *mapping;
    CUresult result = context_usable(&context);
    if (result != CUDA_SUCCESS) return END(result);
    if (!address || bytes == 0) return END(CUDA_ERROR_INVALID_VALUE);
    if (bytes > setting(VMMSIM_MEMORY_BYTES)) return END(CUDA_ERROR_OUT_OF_MEMORY);
    uint64_t size = (bytes + PLAIN_ALIGNMENT - 1) / PLAIN_ALIGNMENT * PLAIN_ALIGNMENT;
    CUmemAllocationProp properties = {.type = CU_MEM_ALLOCATION_TYPE_PINNED,
                                      .location = {CU_MEM_LOCATION_TYPE_DEVICE, context->device}};
    result = handle_create(size, &properties, &handle);
    if (result != CUDA_SUCCESS) return END(result);
    uint64_t base = address_reserve(size, PLAIN_ALIGNMENT, 0, SPAN_PLAIN);
    result = base ? mapping_add(base, handle, &mapping) : CUDA_ERROR_OUT_OF_MEMORY;
    handle_release(handle); /* the mapping alone keeps it */
    if (result != CUDA_SUCCESS) {
        if (base) address_give_back(span_at(&sim.spaces, base));
        return END(result);
    }
    mapping->plain = true;
    memset(mapping->access, CU_MEM_ACCESS_FLAGS_PROT_READWRITE, sizeof mapping->access);
    result = mapping_protect(mapping);
    *address = base;
    return END(result);
}

/* As the driver does, wait for the device's work first. */
EXPORT CUresult cuMemFree_v2(CUdeviceptr address)
{
    BEGIN(cuMemFree_v2);
    if (address == 0) return END(CUDA_SUCCESS);
    Mapping *mapping = mapping_at(address);
    if (!mapping || !mapping->plain || mapping->span.base != address)
        return END(misuse(CUDA_ERROR_INVALID_VALUE,
                          "cuMemFree of 0x%llx, which cuMemAlloc did not give or which is freed", address));
    CUresult result = device_synchronize(mapping->handle->allocation->properties.location.id);
    mapping = mapping_at(address); /* the lock was free while waiting */
    if (result == CUDA_ERROR_LAUNCH_TIMEOUT || !mapping) return END(result);
    mapping_remove(mapping);
    address_give_back(span_at(&sim.spaces, address));
    return END(result);
}

EXPORT CUresult cuMemGetInfo_v2(size_t *free_bytes, size_t *total)
{
    BEGIN(cuMemGetInfo_v2);
    Context *context;
    CUresult result = context_usable(&context);
    if (result != CUDA_SUCCESS) return END(result);
    if (!free_bytes || !total) return END(CUDA_ERROR_INVALID_VALUE);
    *total = setting(VMMSIM_MEMORY_BYTES);
    *free_bytes = *total - handle_device_bytes(context->device);
    return END(CUDA_SUCCESS);
}

EXPORT CUresult cuMemGetAddressRange_v2(CUdeviceptr *base, size_t *size, CUdeviceptr address)
{
    BEGIN(cuMemGetAddressRange_v2);
    const Mapping *mapping = mapping_at(address);
    if (!mapping) return END(CUDA_ERROR_NOT_FOUND);
    if (base) *base = mapping->span.base;
    if (size) *size = mapping->span.size;
    return END(CUDA_SUCCESS);
}

void plain_counts(uint64_t *allocations)
{
    *allocations = 0;
    for (size_t i = 0; i < sim.memory.count; i++)
        if (sim.memory.items[i]->kind == SPAN_MAPPING) *allocations += ((Mapping *)sim.memory.items[i])->plain;
}

/* ---- Pointer attributes ---- */

/* Numbers of the interface; each case says the name. */
static CUresult pointer_attribute(void *data, int attribute, uint64_t address)
{
    const Span *span = span_at(&sim.memory, address);
    if (!span) return CUDA_ERROR_INVALID_VALUE;
    const Mapping *mapping = span->kind == SPAN_MAPPING ? (const Mapping *)span : NULL;
    const CUmemAllocationProp *properties = mapping ? &mapping->handle->allocation->properties : NULL;
    int device = properties ? properties->location.id : 0;
    switch (attribute) {
    case 1: /* CONTEXT */ *(CUcontext *)data = mapping && !mapping->plain ? NULL : &sim.contexts[device]; break;
    case 2: /* MEMORY_TYPE */ *(unsigned *)data = mapping ? CU_MEMORYTYPE_DEVICE : CU_MEMORYTYPE_HOST; break;
    case 3: /* DEVICE_POINTER */ *(CUdeviceptr *)data = address; break;
    case 4: /* HOST_POINTER */
        if (mapping) return CUDA_ERROR_INVALID_VALUE;
        *(void **)data = (void *)(uintptr_t)address;
        break;
    case 7: /* BUFFER_ID */ *(unsigned long long *)data = span->base >> 12; break;
    case 8: /* IS_MANAGED */ *(unsigned char *)data = 0; break;
    case 9: /* DEVICE_ORDINAL */ *(int *)data = device; break;
    case 10: /* IS_LEGACY_CUDA_IPC_CAPABLE */ *(unsigned char *)data = 0; break;
    case 11: /* RANGE_START_ADDR */
    case 19: /* MAPPING_BASE_ADDR */ *(CUdeviceptr *)data = span->base; break;
    case 12: /* RANGE_SIZE */
    case 18: /* MAPPING_SIZE */ *(size_t *)data = span->size; break;
    case 13: /* MAPPED */ *(unsigned char *)data = 1; break;
    case 14: /* ALLOWED_HANDLE_TYPES */
        *(unsigned long long *)data = properties ? (unsigned long long)properties->requestedHandleTypes : 0;
        break;
    default: return CUDA_ERROR_NOT_SUPPORTED;
    }
    return CUDA_SUCCESS;
}

static size_t pointer_attribute_bytes(int attribute)
{
    switch (attribute) {
    case 2:
    case 9: return 4;
    case 8:
    case 10:
    case 13: return 1;
    default: return 8;
    }
}

EXPORT CUresult cuPointerGetAttribute(void *data, int attribute, CUdeviceptr address)
{
    BEGIN(cuPointerGetAttribute);
    return END(data ? pointer_attribute(data, attribute, address) : CUDA_ERROR_INVALID_VALUE);
}

/* As the driver does, an attribute that this pointer lacks is 0, not an error. */
EXPORT CUresult cuPointerGetAttributes(unsigned count, const int *attributes, void **data, CUdeviceptr address)
{
    BEGIN(cuPointerGetAttributes);
    if (!attributes || !data) return END(CUDA_ERROR_INVALID_VALUE);
    for (unsigned i = 0; i < count; i++)
        if (data[i] && pointer_attribute(data[i], attributes[i], address) != CUDA_SUCCESS)
            memset(data[i], 0, pointer_attribute_bytes(attributes[i]));
    return END(CUDA_SUCCESS);
}

/* Pinned host memory: addresses that streams may use while the host does not wait. */
#include <stdlib.h>
#include <sys/mman.h>

#include "sim.h"

enum { HOST_ALLOC_FLAGS = 7 }; /* portable, device map, write combined: one address space has all three */

static CUresult pinned_new(void **address, size_t bytes)
{
    Context *context;
    CUresult result = context_usable(&context);
    if (result != CUDA_SUCCESS) return result;
    if (!address || bytes == 0) return CUDA_ERROR_INVALID_VALUE;
    if (bytes > (1ull << 40)) return CUDA_ERROR_OUT_OF_MEMORY;
    size_t size = (bytes + HOST_PAGE - 1) / HOST_PAGE * HOST_PAGE;
    Span *span = malloc(sizeof *span);
    if (!span) return CUDA_ERROR_OUT_OF_MEMORY;
    void *pages = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    *span = (Span){.base = (uint64_t)(uintptr_t)pages, .size = size, .kind = SPAN_PINNED};
    if (pages != MAP_FAILED && span_insert(&sim.memory, span)) {
        *address = pages;
        return CUDA_SUCCESS;
    }
    if (pages != MAP_FAILED) munmap(pages, size);
    free(span);
    return CUDA_ERROR_OUT_OF_MEMORY;
}

void pinned_free(Span *span)
{
    span_remove(&sim.memory, span);
    munmap((void *)(uintptr_t)span->base, span->size);
    free(span);
}

EXPORT CUresult cuMemHostAlloc(void **address, size_t bytes, unsigned flags)
{
    BEGIN(cuMemHostAlloc);
    if (flags & ~(unsigned)HOST_ALLOC_FLAGS) return END(CUDA_ERROR_INVALID_VALUE);
    return END(pinned_new(address, bytes));
}

EXPORT CUresult cuMemAllocHost_v2(void **address, size_t bytes)
{
    BEGIN(cuMemAllocHost_v2);
    return END(pinned_new(address, bytes));
}

static Span *pinned_at(const void *address)
{
    Span *span = span_at(&sim.memory, (uint64_t)(uintptr_t)address);
    return span && span->kind == SPAN_PINNED ? span : NULL;
}

EXPORT CUresult cuMemFreeHost(void *address)
{
    BEGIN(cuMemFreeHost);
    Span *span = pinned_at(address);
    if (!span || span->base != (uint64_t)(uintptr_t)address)
        return END(misuse(CUDA_ERROR_INVALID_VALUE, "cuMemFreeHost of %p, which is no pinned allocation or is freed",
                          address));
    const Stream *stream;
    if (stream_queued_use(span->base, span->size, &stream))
        violation("cuMemFreeHost of %p while stream 0x%llx still has work queued on it", address,
                  (unsigned long long)stream->id);
    pinned_free(span);
    return END(CUDA_SUCCESS);
}

EXPORT CUresult cuMemHostGetDevicePointer_v2(CUdeviceptr *device_address, void *address, unsigned flags)
{
    BEGIN(cuMemHostGetDevicePointer_v2);
    if (!device_address || flags != 0 || !pinned_at(address)) return END(CUDA_ERROR_INVALID_VALUE);
    *device_address = (uint64_t)(uintptr_t)address;
    return END(CUDA_SUCCESS);
}

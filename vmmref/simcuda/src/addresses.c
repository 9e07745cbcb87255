/* Virtual addresses: reservations, and the quarantine of addresses given back. */
#include <stdlib.h>
#include <sys/mman.h>

#include "sim.h"

static void *pointer(uint64_t address) { return (void *)(uintptr_t)address; }

/*
 * Addresses are taken one behind the other from large arenas, with a gap that nothing is ever mapped in. So an overrun
 * does not reach the neighbour, and addresses in quarantine lie side by side, which the kernel keeps as one entry.
 */
enum { LARGEST_ARENA_SHIFT = 36, SMALLEST_ARENA_SHIFT = 24 };

static uint64_t arena_next, arena_end;
static Span *oldest, *youngest; /* quarantine */
static uint64_t quarantined_bytes;

enum { NO_ACCESS_FLAGS = MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE };

static bool arena_new(uint64_t least)
{
    for (int shift = LARGEST_ARENA_SHIFT; shift >= SMALLEST_ARENA_SHIFT; shift--) {
        uint64_t size = 1ull << shift > least ? 1ull << shift : least;
        void *arena = mmap(NULL, size, PROT_NONE, NO_ACCESS_FLAGS, -1, 0);
        if (arena == MAP_FAILED) continue; /* the process may be limited in addresses */
        arena_next = (uint64_t)(uintptr_t)arena;
        arena_end = arena_next + size;
        return true;
    }
    return false;
}

static uint64_t align_up(uint64_t address, uint64_t alignment) { return (address + alignment - 1) & ~(alignment - 1); }

static uint64_t arena_take(uint64_t size, uint64_t alignment)
{
    uint64_t base = align_up(arena_next, alignment);
    if (base + size + alignment > arena_end) {
        if (!arena_new(size + 2 * alignment)) return 0;
        base = align_up(arena_next, alignment);
    }
    arena_next = base + size + alignment;
    return base;
}

/* Addresses without access, aligned; 0 when there are none. */
static uint64_t addresses_find(uint64_t size, uint64_t alignment, uint64_t hint, uint64_t *gap)
{
    *gap = 0;
    if (hint != 0 && hint % alignment == 0) {
        void *wanted = mmap(pointer(hint), size, PROT_NONE, NO_ACCESS_FLAGS | MAP_FIXED_NOREPLACE, -1, 0);
        if (wanted == pointer(hint)) return hint;
        if (wanted != MAP_FAILED) munmap(wanted, size);
    }
    *gap = alignment;
    return arena_take(size, alignment);
}

uint64_t address_reserve(uint64_t size, uint64_t alignment, uint64_t hint, SpanKind kind)
{
    Span *space = malloc(sizeof *space);
    if (!space) return 0;
    uint64_t gap, base = addresses_find(size, alignment, hint, &gap);
    *space = (Span){.base = base, .size = size, .kind = kind, .gap = gap};
    if (base != 0 && span_insert(&sim.spaces, space)) return base;
    if (base != 0) munmap(pointer(base), size + gap);
    free(space);
    return 0;
}

static void space_forget(Span *space)
{
    munmap(pointer(space->base), space->size + space->gap);
    span_remove(&sim.spaces, space);
    free(space);
}

void address_give_back(Span *space)
{
    if (space->size > setting(VMMSIM_QUARANTINE_BYTES)) {
        space_forget(space);
        return;
    }
    space->kind = SPAN_QUARANTINED;
    *(oldest ? &youngest->younger : &oldest) = space;
    youngest = space;
    quarantined_bytes += space->size;
    while (quarantined_bytes > setting(VMMSIM_QUARANTINE_BYTES)) {
        Span *leaving = oldest;
        oldest = leaving->younger;
        quarantined_bytes -= leaving->size;
        space_forget(leaving);
    }
}

EXPORT CUresult cuMemAddressReserve(CUdeviceptr *address, size_t size, size_t alignment, CUdeviceptr hint,
                                    unsigned long long flags)
{
    BEGIN(cuMemAddressReserve);
    uint64_t granularity = setting(VMMSIM_GRANULARITY);
    if (!address || flags != 0 || (alignment & (alignment - 1)) != 0) return END(CUDA_ERROR_INVALID_VALUE);
    if (size == 0 || size % HOST_PAGE != 0 || hint % HOST_PAGE != 0)
        return END(misuse(CUDA_ERROR_INVALID_VALUE,
                          "cuMemAddressReserve of %zu bytes: size and hint are multiples of the host page", size));
    if (size > (1ull << 46)) return END(CUDA_ERROR_OUT_OF_MEMORY);
    uint64_t base = address_reserve(size, alignment > granularity ? alignment : granularity, hint, SPAN_RESERVED);
    if (base == 0) return END(CUDA_ERROR_OUT_OF_MEMORY);
    *address = base;
    return END(CUDA_SUCCESS);
}

static bool mapped_inside(const Span *space)
{
    size_t index = span_first_from(&sim.memory, space->base);
    return index < sim.memory.count && sim.memory.items[index]->base < space->base + space->size;
}

EXPORT CUresult cuMemAddressFree(CUdeviceptr address, size_t size)
{
    BEGIN(cuMemAddressFree);
    Span *space = span_at(&sim.spaces, address);
    if (!space || space->kind != SPAN_RESERVED || space->base != address || space->size != size)
        return END(misuse(CUDA_ERROR_INVALID_VALUE,
                          "cuMemAddressFree of 0x%llx (%zu bytes), which is not one whole reservation", address, size));
    if (mapped_inside(space))
        return END(misuse(CUDA_ERROR_INVALID_VALUE, "cuMemAddressFree of 0x%llx while memory is mapped there",
                          address));
    address_give_back(space);
    return END(CUDA_SUCCESS);
}

void addresses_reset(void)
{
    /* Giving back may also forget the oldest of the quarantine, so look again from the start after each. */
    for (size_t i = 0; i < sim.spaces.count; i++)
        if (sim.spaces.items[i]->kind != SPAN_QUARANTINED) {
            address_give_back(sim.spaces.items[i]);
            i = (size_t)-1;
        }
}

/* Back to addresses without access, after an unmap. */
void address_clear(uint64_t base, uint64_t size)
{
    mmap(pointer(base), size, PROT_NONE, NO_ACCESS_FLAGS | MAP_FIXED, -1, 0);
}

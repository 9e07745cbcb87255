/*
 * Device memory is written and read word by word with atomic accesses, so that no naturally aligned word of four or
 * eight bytes is ever torn: pools use small copies and memsets as flag stores, in this process and between processes.
 * A fence stands before and after each copy and memset, so a flag is never seen before the bytes of an earlier piece.
 */
#include <string.h>

#include "sim.h"

/* The thread sanitizer does not know fences; inside one process the mutex orders the pieces anyway. */
static void fence(void)
{
#ifndef __SANITIZE_THREAD__
    __atomic_thread_fence(__ATOMIC_ACQ_REL);
#endif
}

#define COPY_ALIGNED(type)                                                               \
    for (; count >= sizeof(type); count -= sizeof(type)) {                               \
        type word = __atomic_load_n((const type *)from, __ATOMIC_RELAXED);               \
        __atomic_store_n((type *)to, word, __ATOMIC_RELAXED);                            \
        from += sizeof(type);                                                            \
        to += sizeof(type);                                                              \
    }

/* Single bytes, and one half word, up to the alignment that the large loop wants. */
static size_t copy_up_to(unsigned char **to, const unsigned char **from, size_t count, size_t alignment)
{
    while (count > 0 && ((uintptr_t)*to & (alignment - 1)) != 0) {
        size_t step = ((uintptr_t)*to & 3) == 0 && count >= 4 ? 4 : 1;
        if (step == 4)
            __atomic_store_n((uint32_t *)*to, __atomic_load_n((const uint32_t *)*from, __ATOMIC_RELAXED),
                             __ATOMIC_RELAXED);
        else
            __atomic_store_n(*to, __atomic_load_n(*from, __ATOMIC_RELAXED), __ATOMIC_RELAXED);
        *to += step;
        *from += step;
        count -= step;
    }
    return count;
}

/* The two sides are not aligned alike: words are whole on the side that is read, which is the device in a download. */
static void copy_unlike(unsigned char *to, const unsigned char *from, size_t count)
{
    for (; count > 0 && ((uintptr_t)from & 3) != 0; count--) *to++ = __atomic_load_n(from++, __ATOMIC_RELAXED);
    for (; count >= 4; count -= 4, to += 4, from += 4) {
        uint32_t word = __atomic_load_n((const uint32_t *)from, __ATOMIC_RELAXED);
        memcpy(to, &word, sizeof word);
    }
    for (; count > 0; count--) *to++ = __atomic_load_n(from++, __ATOMIC_RELAXED);
}

static void copy_alike(unsigned char *to, const unsigned char *from, size_t count)
{
    if ((((uintptr_t)to ^ (uintptr_t)from) & 7) == 0) {
        count = copy_up_to(&to, &from, count, 8);
        COPY_ALIGNED(uint64_t)
    } else {
        count = copy_up_to(&to, &from, count, 4);
    }
    COPY_ALIGNED(uint32_t)
    COPY_ALIGNED(uint8_t)
}

/* Overlapping ranges are undefined for the driver; here the copy simply runs upwards. */
void copy_words(void *destination, const void *source, size_t count)
{
    fence();
    if ((((uintptr_t)destination ^ (uintptr_t)source) & 3) == 0)
        copy_alike(destination, source, count);
    else
        copy_unlike(destination, source, count);
    fence();
}

void fill_words(void *destination, uint64_t value, unsigned width, size_t count)
{
    unsigned char *to = destination;
    uint64_t pattern = width == 1 ? (value & 0xff) * 0x0101010101010101u : (value & 0xffffffffu) * 0x0000000100000001u;
    fence();
    for (; count > 0 && ((uintptr_t)to & 3) != 0; to++, count--) __atomic_store_n(to, (uint8_t)pattern,
                                                                                  __ATOMIC_RELAXED);
    if (count >= 4 && ((uintptr_t)to & 7) != 0) {
        __atomic_store_n((uint32_t *)to, (uint32_t)pattern, __ATOMIC_RELAXED);
        to += 4;
        count -= 4;
    }
    for (; count >= 8; to += 8, count -= 8) __atomic_store_n((uint64_t *)to, pattern, __ATOMIC_RELAXED);
    if (count >= 4) {
        __atomic_store_n((uint32_t *)to, (uint32_t)pattern, __ATOMIC_RELAXED);
        to += 4;
        count -= 4;
    }
    for (; count > 0; to++, count--) __atomic_store_n(to, (uint8_t)pattern, __ATOMIC_RELAXED);
    fence();
}

uint64_t load_word(const void *address, unsigned width)
{
    if (width == 8) return __atomic_load_n((const uint64_t *)address, __ATOMIC_ACQUIRE);
    return __atomic_load_n((const uint32_t *)address, __ATOMIC_ACQUIRE);
}

void store_word(void *address, uint64_t value, unsigned width)
{
    /* A default stream write comes after a fence of the whole system: earlier work of the stream is seen before it. */
    if (width == 8)
        __atomic_store_n((uint64_t *)address, value, __ATOMIC_SEQ_CST);
    else
        __atomic_store_n((uint32_t *)address, (uint32_t)value, __ATOMIC_SEQ_CST);
}

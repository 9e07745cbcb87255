/* Sorted tables of address ranges: a look-up is a binary search, a change moves the tail. */
#include <stdlib.h>
#include <string.h>

#include "sim.h"

size_t span_first_from(const SpanTable *table, uint64_t address)
{
    size_t low = 0, high = table->count;
    while (low < high) {
        size_t middle = low + (high - low) / 2;
        const Span *span = table->items[middle];
        if (span->base + span->size <= address)
            low = middle + 1;
        else
            high = middle;
    }
    return low;
}

Span *span_at(const SpanTable *table, uint64_t address)
{
    size_t index = span_first_from(table, address);
    if (index == table->count || table->items[index]->base > address) return NULL;
    return table->items[index];
}

bool span_insert(SpanTable *table, Span *span)
{
    if (table->count == table->capacity) {
        size_t capacity = table->capacity ? table->capacity * 2 : 32;
        Span **items = realloc(table->items, capacity * sizeof(*items));
        if (!items) return false;
        table->items = items;
        table->capacity = capacity;
    }
    size_t index = span_first_from(table, span->base);
    memmove(table->items + index + 1, table->items + index, (table->count - index) * sizeof(*table->items));
    table->items[index] = span;
    table->count++;
    return true;
}

void span_remove(SpanTable *table, const Span *span)
{
    size_t index = span_first_from(table, span->base);
    if (index == table->count || table->items[index] != span) return;
    table->count--;
    memmove(table->items + index, table->items + index + 1, (table->count - index) * sizeof(*table->items));
}

bool range_overlaps(uint64_t base, uint64_t size, uint64_t other, uint64_t other_size)
{
    return size != 0 && other_size != 0 && base < other + other_size && other < base + size;
}

/* A hash table from handle numbers (never 0) to objects: linear probing, at most half full. */
#include <stdlib.h>

#include "sim.h"

static size_t first_place(const Map *map, uint64_t key)
{
    return (size_t)((key * 0x9e3779b97f4a7c15u) >> 32) & (map->capacity - 1);
}

static size_t place_of_key(const Map *map, uint64_t key)
{
    size_t place = first_place(map, key);
    while (map->keys[place] != 0 && map->keys[place] != key) place = (place + 1) & (map->capacity - 1);
    return place;
}

void *map_find(const Map *map, uint64_t key)
{
    if (map->capacity == 0 || key == 0) return NULL;
    size_t place = place_of_key(map, key);
    return map->keys[place] == key ? map->values[place] : NULL;
}

static bool map_grow(Map *map)
{
    Map larger = {.capacity = map->capacity ? map->capacity * 2 : 64, .used = map->used};
    larger.keys = calloc(larger.capacity, sizeof *larger.keys);
    larger.values = calloc(larger.capacity, sizeof *larger.values);
    if (!larger.keys || !larger.values) {
        free(larger.keys);
        free(larger.values);
        return false;
    }
    for (size_t i = 0; i < map->capacity; i++) {
        if (map->keys[i] == 0) continue;
        size_t place = place_of_key(&larger, map->keys[i]);
        larger.keys[place] = map->keys[i];
        larger.values[place] = map->values[i];
    }
    free(map->keys);
    free(map->values);
    *map = larger;
    return true;
}

bool map_insert(Map *map, uint64_t key, void *value)
{
    if (map->used * 2 >= map->capacity && !map_grow(map)) return false;
    size_t place = place_of_key(map, key);
    map->keys[place] = key;
    map->values[place] = value;
    map->used++;
    return true;
}

void map_remove(Map *map, uint64_t key)
{
    if (!map_find(map, key)) return;
    size_t mask = map->capacity - 1, hole = place_of_key(map, key);
    /* Move later entries of the same run back, so that no search ends too early. */
    for (size_t i = (hole + 1) & mask; map->keys[i] != 0; i = (i + 1) & mask) {
        size_t wanted = first_place(map, map->keys[i]);
        if (((i - wanted) & mask) < ((i - hole) & mask)) continue;
        map->keys[hole] = map->keys[i];
        map->values[hole] = map->values[i];
        hole = i;
    }
    map->keys[hole] = 0;
    map->values[hole] = NULL;
    map->used--;
}

void *map_any(const Map *map)
{
    for (size_t i = 0; i < map->capacity; i++)
        if (map->keys[i] != 0) return map->values[i];
    return NULL;
}

/* Short checks for the C tests: the first that fails ends the program with its place. */
#ifndef CHECK_H
#define CHECK_H

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "driver.h"
#include "vmmsim.h"

#define CHECK(condition)                                                        \
    do {                                                                        \
        if (!(condition)) {                                                     \
            fprintf(stderr, "%s:%d: not so: %s\n", __FILE__, __LINE__, #condition); \
            exit(1);                                                            \
        }                                                                       \
    } while (0)

#define OK(call)                                                                           \
    do {                                                                                   \
        CUresult result_ = (call);                                                         \
        if (result_ != CUDA_SUCCESS) {                                                     \
            fprintf(stderr, "%s:%d: %s answered %d\n", __FILE__, __LINE__, #call, result_); \
            exit(1);                                                                       \
        }                                                                                  \
    } while (0)

enum { SIZE = 2 << 20 };

typedef struct {
    CUmemGenericAllocationHandle handle;
    CUdeviceptr address;
} Memory;

void use_device(int device);
Memory memory_new(void);
void memory_free(Memory memory);
CUstream stream_new(void);

/* Run in threads, one for each number from 0; returns when all have ended. */
void in_threads(int count, void (*work)(int number));

#endif

/* What the C tests share. */
#include <pthread.h>

#include "check.h"

enum { MOST_THREADS = 16 };

void use_device(int device)
{
    CUcontext context;
    OK(cuInit(0));
    OK(cuDevicePrimaryCtxRetain(&context, device));
    OK(cuCtxSetCurrent(context));
}

Memory memory_new(void)
{
    Memory memory;
    CUmemAllocationProp properties = {.type = CU_MEM_ALLOCATION_TYPE_PINNED,
                                      .requestedHandleTypes = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR,
                                      .location = {CU_MEM_LOCATION_TYPE_DEVICE, 0}};
    CUmemAccessDesc access = {properties.location, CU_MEM_ACCESS_FLAGS_PROT_READWRITE};
    OK(cuMemCreate(&memory.handle, SIZE, &properties, 0));
    OK(cuMemAddressReserve(&memory.address, SIZE, 0, 0, 0));
    OK(cuMemMap(memory.address, SIZE, 0, memory.handle, 0));
    OK(cuMemSetAccess(memory.address, SIZE, &access, 1));
    return memory;
}

void memory_free(Memory memory)
{
    OK(cuMemUnmap(memory.address, SIZE));
    OK(cuMemAddressFree(memory.address, SIZE));
    OK(cuMemRelease(memory.handle));
}

CUstream stream_new(void)
{
    CUstream stream;
    OK(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
    return stream;
}

typedef struct {
    void (*work)(int number);
    int number;
} Job;

static void *run(void *argument)
{
    const Job *job = argument;
    use_device(0);
    job->work(job->number);
    return NULL;
}

void in_threads(int count, void (*work)(int number))
{
    pthread_t threads[MOST_THREADS];
    Job jobs[MOST_THREADS];
    CHECK(count <= MOST_THREADS);
    for (int i = 0; i < count; i++) {
        jobs[i] = (Job){work, i};
        CHECK(pthread_create(&threads[i], NULL, run, &jobs[i]) == 0);
    }
    for (int i = 0; i < count; i++) CHECK(pthread_join(threads[i], NULL) == 0);
}

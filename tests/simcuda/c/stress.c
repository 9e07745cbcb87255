/*
 * Stress of the simulated driver, compiled together with it under the sanitizers: many threads use streams, events,
 * memory and control functions at once; then the same in stepping mode, with a random interleaving.
 */
#include <unistd.h>

#include "check.h"

enum { RINGS = 4, RING_SIZE = 3, ROUNDS = 60, STREAMS = 5, STEPS = 20000 };

static Memory shared;
static unsigned host_calls[RINGS];

static void count_call(void *data) { __atomic_add_fetch((unsigned *)data, 1, __ATOMIC_RELAXED); }

/* Each ring hands its word from stream to stream by waits, writes, events and host functions. */
static void run_ring(int ring)
{
    CUdeviceptr word = shared.address + 64 * (unsigned)ring, copy = word + 4096;
    CUstream streams[RING_SIZE];
    CUevent event;
    OK(cuEventCreate(&event, CU_EVENT_DISABLE_TIMING));
    for (int i = 0; i < RING_SIZE; i++) streams[i] = stream_new();
    for (unsigned value = 0; value < ROUNDS * RING_SIZE; value++) {
        CUstream stream = streams[value % RING_SIZE];
        OK(cuStreamWaitValue32_v2(stream, word, value, CU_STREAM_WAIT_VALUE_GEQ));
        OK(cuMemcpyDtoDAsync_v2(copy, word, 4, stream));
        OK(cuLaunchHostFunc(stream, count_call, &host_calls[ring]));
        OK(cuStreamWriteValue32_v2(stream, word, value + 1, CU_STREAM_WRITE_VALUE_DEFAULT));
        OK(cuEventRecord(event, stream));
        OK(cuStreamWaitEvent(streams[(value + 1) % RING_SIZE], event, 0));
        (void)cuEventQuery(event);
    }
    OK(cuEventSynchronize(event));
    OK(cuEventDestroy_v2(event));
    for (int i = 0; i < RING_SIZE; i++) OK(cuStreamSynchronize(streams[i]));
    for (int i = 0; i < RING_SIZE; i++) OK(cuStreamDestroy_v2(streams[i]));
}

static void check_rings(void)
{
    in_threads(RINGS, run_ring);
    for (int ring = 0; ring < RINGS; ring++) {
        uint32_t words[2];
        OK(vmmsim_read(shared.address + 64 * (unsigned)ring, &words[0], 4));
        OK(vmmsim_read(shared.address + 64 * (unsigned)ring + 4096, &words[1], 4));
        CHECK(words[0] == ROUNDS * RING_SIZE && words[1] == words[0] - 1);
        CHECK(host_calls[ring] == ROUNDS * RING_SIZE);
    }
}

/* Memory comes and goes while large copies of other threads run; faults fire now and then, and lose nothing. */
static void churn(int number)
{
    CUstream stream = stream_new();
    unsigned char *bytes = malloc(SIZE);
    CHECK(bytes);
    for (int round = 0; round < 15; round++) {
        Memory memory = memory_new();
        void *pinned;
        CUdeviceptr plain;
        int descriptor;
        CUmemGenericAllocationHandle imported;
        OK(cuMemHostAlloc(&pinned, SIZE, 0));
        OK(cuMemAlloc_v2(&plain, 4096));
        OK(cuMemsetD8Async(memory.address, (unsigned char)number, SIZE, stream));
        OK(cuMemcpyDtoHAsync_v2(pinned, memory.address, SIZE, stream));
        OK(cuMemcpyHtoDAsync_v2(plain, "0123456789", 10, stream));
        OK(cuMemExportToShareableHandle(&descriptor, memory.handle, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0));
        OK(cuMemImportFromShareableHandle(&imported, (void *)(intptr_t)descriptor,
                                          CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR));
        CHECK(close(descriptor) == 0);
        OK(cuMemRelease(imported));
        OK(cuMemcpyDtoHAsync_v2(bytes, memory.address, SIZE, stream));
        CHECK(bytes[0] == number && bytes[SIZE - 1] == number && memcmp(bytes, pinned, SIZE) == 0);
        OK(cuMemFree_v2(plain));
        OK(cuMemFreeHost(pinned));
        memory_free(memory);
    }
    free(bytes);
    OK(cuStreamDestroy_v2(stream));
}

/* Words that are whole: copies and memsets change them while another thread looks. */
static void check_whole_words(void)
{
    enum { WORDS = 2000, ROUNDS_OF_BOTH = 40 };
    Memory memory = memory_new();
    CUstream stream = stream_new();
    CUdeviceptr target = memory.address, source = memory.address + (1 << 20);
    OK(cuMemsetD8Async(source, 0xAA, 8 * WORDS, stream));
    for (int round = 0; round < ROUNDS_OF_BOTH; round++) {
        OK(cuMemcpyDtoDAsync_v2(target, source, 8 * WORDS, stream));
        OK(cuMemsetD32Async(target, 0x55555555, 2 * WORDS, stream));
    }
    while (cuStreamQuery(stream) == CUDA_ERROR_NOT_READY)
        for (int i = 0; i < WORDS; i++) {
            uint64_t word = __atomic_load_n((const uint64_t *)(uintptr_t)target + i, __ATOMIC_RELAXED);
            CHECK(word == 0 || word == 0xAAAAAAAAAAAAAAAAu || word == 0x5555555555555555u);
        }
    OK(cuStreamSynchronize(stream));
    OK(cuStreamDestroy_v2(stream));
    memory_free(memory);
}

/* A reset while threads wait on streams that are stuck: every one of them comes back. */
static int64_t synchronised_before;

static void wait_until_reset(int number)
{
    if (number == 0) {
        while (vmmsim_call_count("cuStreamSynchronize") < synchronised_before + 3) usleep(100);
        OK(vmmsim_reset());
        return;
    }
    CUstream stream = stream_new();
    OK(cuStreamWaitValue32_v2(stream, shared.address, 0x70000000, CU_STREAM_WAIT_VALUE_EQ));
    CHECK(cuStreamSynchronize(stream) == CUDA_ERROR_CONTEXT_IS_DESTROYED);
}

static uint32_t random_state = 20413;

static uint32_t draw(uint32_t below)
{
    random_state = random_state * 1664525u + 1013904223u;
    return (random_state >> 8) % below;
}

/* A model of the streams in a few lines: the values that each word must show after each step. */
static void check_stepping(void)
{
    Memory memory = memory_new();
    CUstream streams[STREAMS];
    uint32_t next[STREAMS] = {0}, done[STREAMS] = {0};
    for (int i = 0; i < STREAMS; i++) streams[i] = stream_new();
    for (int step = 0; step < STEPS; step++) {
        uint32_t i = draw(STREAMS);
        uint64_t number = (uint64_t)(uintptr_t)streams[i];
        CUdeviceptr word = memory.address + 64 * i;
        vmmsim_piece piece;
        uint32_t seen;
        if (draw(2) == 0 && next[i] - done[i] < 50) {
            next[i]++;
            if (next[i] % 3 == 0)
                OK(cuMemcpyHtoDAsync_v2(word, &next[i], 4, streams[i]));
            else if (next[i] % 3 == 1)
                OK(cuMemsetD32Async(word, next[i], 1, streams[i]));
            else
                OK(cuStreamWriteValue32_v2(streams[i], word, next[i], 0));
        } else if (next[i] != done[i]) {
            CHECK(vmmsim_step_memory(number, &piece) == VMMSIM_RAN);
            CHECK(piece.destination == word && piece.bytes == 4);
            done[i]++;
        } else {
            CHECK(vmmsim_step(number, NULL) == VMMSIM_EMPTY);
        }
        OK(vmmsim_read(word, &seen, 4));
        CHECK(seen == done[i] && vmmsim_pending(number) == (int64_t)(next[i] - done[i]));
    }
    for (int i = 0; i < STREAMS; i++) OK(cuStreamSynchronize(streams[i]));
    for (int i = 0; i < STREAMS; i++) OK(cuStreamDestroy_v2(streams[i]));
    memory_free(memory);
}

static void check_nothing_is_left(void)
{
    vmmsim_usage_counts usage, nothing = {0};
    vmmsim_usage(&usage);
    CHECK(memcmp(&usage, &nothing, sizeof usage) == 0);
    CHECK(vmmsim_violation_count() == 0);
}

int main(void)
{
    use_device(0);
    shared = memory_new();
    check_rings();
    in_threads(4, churn);
    OK(cuCtxSynchronize());
    check_whole_words();
    synchronised_before = vmmsim_call_count("cuStreamSynchronize");
    in_threads(4, wait_until_reset);
    check_nothing_is_left();
    OK(vmmsim_configure(VMMSIM_MODE, 1));
    check_stepping();
    check_nothing_is_left();
    puts("done");
    return 0;
}

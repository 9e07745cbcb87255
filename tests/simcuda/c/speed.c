/* Nanoseconds of one enqueue and of one step in stepping mode, without any Python: "enqueue N step N". */
#include <time.h>

#include "check.h"

enum { ROUNDS = 4000, BATCH = 50 };

static double seconds(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)now.tv_sec + (double)now.tv_nsec * 1e-9;
}

int main(void)
{
    double enqueue = 0, step = 0;
    OK(vmmsim_configure(VMMSIM_MODE, 1));
    use_device(0);
    Memory memory = memory_new();
    CUstream stream = stream_new();
    for (int round = 0; round < ROUNDS; round++) {
        double start = seconds();
        for (uint32_t i = 0; i < BATCH; i++) OK(cuStreamWriteValue32_v2(stream, memory.address, i, 0));
        double middle = seconds();
        for (int i = 0; i < BATCH; i++) CHECK(vmmsim_step_memory((uint64_t)(uintptr_t)stream, NULL) == VMMSIM_RAN);
        enqueue += middle - start;
        step += seconds() - middle;
    }
    printf("enqueue %.0f step %.0f\n", enqueue / (ROUNDS * BATCH) * 1e9, step / (ROUNDS * BATCH) * 1e9);
    return 0;
}

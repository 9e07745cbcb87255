/* Names and texts of results. Pure: they work before cuInit, in a forked child and in a host function. */
#include "sim.h"

static const struct {
    CUresult result;
    const char *name, *text;
} results[] = {
#define RESULT(name, value, text) {value, #name, text},
#include "results.def"
#undef RESULT
};

enum { RESULTS = sizeof results / sizeof *results };

EXPORT CUresult cuGetErrorName(CUresult result, const char **name)
{
    if (!name) return CUDA_ERROR_INVALID_VALUE;
    *name = NULL;
    for (int i = 0; i < RESULTS; i++)
        if (results[i].result == result) *name = results[i].name;
    return *name ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

EXPORT CUresult cuGetErrorString(CUresult result, const char **text)
{
    if (!text) return CUDA_ERROR_INVALID_VALUE;
    *text = NULL;
    for (int i = 0; i < RESULTS; i++)
        if (results[i].result == result) *text = results[i].text;
    return *text ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

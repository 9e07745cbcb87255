/* From a name and an interface version to a function, as the driver's own look-up answers. */
#include <string.h>

#include "sim.h"

#define FUNCTION(name, first, last, symbol) CUresult symbol();
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wstrict-prototypes"
#include "functions.def"
#pragma GCC diagnostic pop
#undef FUNCTION

typedef CUresult (*AnyFunction)();

static const struct {
    const char *name;
    int first, last;
    AnyFunction function;
} functions[CALL_COUNT] = {
#define FUNCTION(name, first, last, symbol) {#name, first, last, symbol},
#include "functions.def"
#undef FUNCTION
};

static const struct {
    const char *name;
    int first;
} known_names[] = {
#define KNOWN(name, first) {#name, first},
#include "known_names.def"
#undef KNOWN
};

enum { KNOWN_NAMES = sizeof known_names / sizeof *known_names };

/* Safe for every signature: the calling convention lets a callee ignore its arguments. */
static CUresult not_supported(void)
{
    return forked() ? CUDA_ERROR_NOT_INITIALIZED : CUDA_ERROR_NOT_SUPPORTED;
}

const char *call_name(Call call) { return functions[call].name; }

int call_numbered(const char *name)
{
    for (int call = 0; call < CALL_COUNT; call++)
        if (strcmp(functions[call].name, name) == 0) return call;
    return -1;
}

/* NULL with *known set when the name exists, but only in other versions than the asked one. */
static AnyFunction look_up(const char *name, int version, bool *known)
{
    *known = false;
    for (int i = 0; i < CALL_COUNT; i++) {
        if (strcmp(functions[i].name, name) != 0) continue;
        *known = true;
        if (functions[i].first <= version && version <= functions[i].last) return functions[i].function;
    }
    for (int i = 0; i < KNOWN_NAMES; i++) {
        if (strcmp(known_names[i].name, name) != 0) continue;
        *known = true;
        if (known_names[i].first <= version) return (AnyFunction)not_supported;
    }
    return NULL;
}

EXPORT CUresult cuGetProcAddress_v2(const char *name, void **function, int version, uint64_t flags, int *status)
{
    (void)flags; /* choose the default stream's kind; the simulator has only the legacy one */
    if (!name || !function) return CUDA_ERROR_INVALID_VALUE;
    *function = NULL;
    if (status) *status = CU_GET_PROC_ADDRESS_SYMBOL_NOT_FOUND;
    if (version > (int)setting(VMMSIM_DRIVER_VERSION)) return CUDA_ERROR_INVALID_VALUE;
    __atomic_store_n(&sim.resolved, true, __ATOMIC_RELAXED);
    bool known;
    AnyFunction found = look_up(name, version, &known);
    memcpy(function, &found, sizeof found);
    if (status && known)
        *status = found ? CU_GET_PROC_ADDRESS_SUCCESS : CU_GET_PROC_ADDRESS_VERSION_NOT_SUFFICIENT;
    return CUDA_SUCCESS;
}

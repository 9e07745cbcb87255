/* Devices and their primary contexts, the only contexts there are. */
#include <stdio.h>
#include <string.h>

#include "sim.h"

enum { DEEPEST_STACK = 32, LAST_ATTRIBUTE = 160 };

static _Thread_local Context *stack[DEEPEST_STACK];
static _Thread_local unsigned depth; /* contexts on the stack; the current one is the last */

bool device_valid(CUdevice device) { return device >= 0 && (uint64_t)device < setting(VMMSIM_DEVICES); }

CUresult context_any(Context **context)
{
    if (depth == 0 || !stack[depth - 1]) return CUDA_ERROR_INVALID_CONTEXT;
    if (stack[depth - 1]->retained == 0) return CUDA_ERROR_CONTEXT_IS_DESTROYED;
    *context = stack[depth - 1];
    return CUDA_SUCCESS;
}

CUresult context_usable(Context **context)
{
    CUresult result = context_any(context);
    return result != CUDA_SUCCESS ? result : (*context)->sticky;
}

void contexts_forget_errors(void)
{
    for (int device = 0; device < MAX_DEVICES; device++) sim.contexts[device].sticky = CUDA_SUCCESS;
}

EXPORT CUresult cuDeviceGetCount(int *count)
{
    BEGIN(cuDeviceGetCount);
    if (!count) return END(CUDA_ERROR_INVALID_VALUE);
    *count = (int)setting(VMMSIM_DEVICES);
    return END(CUDA_SUCCESS);
}

EXPORT CUresult cuDeviceGet(CUdevice *device, int ordinal)
{
    BEGIN(cuDeviceGet);
    if (!device) return END(CUDA_ERROR_INVALID_VALUE);
    if (!device_valid(ordinal)) return END(CUDA_ERROR_INVALID_DEVICE);
    *device = ordinal;
    return END(CUDA_SUCCESS);
}

EXPORT CUresult cuDeviceGetName(char *name, int capacity, CUdevice device)
{
    BEGIN(cuDeviceGetName);
    if (!name || capacity <= 0) return END(CUDA_ERROR_INVALID_VALUE);
    if (!device_valid(device)) return END(CUDA_ERROR_INVALID_DEVICE);
    snprintf(name, (size_t)capacity, "vmmref simulated GPU %d (no hardware)", device);
    return END(CUDA_SUCCESS);
}

static CUresult device_uuid(CUuuid *uuid, CUdevice device)
{
    if (!uuid) return CUDA_ERROR_INVALID_VALUE;
    if (!device_valid(device)) return CUDA_ERROR_INVALID_DEVICE;
    memcpy(uuid->bytes, "vmmref-simulated", sizeof uuid->bytes);
    uuid->bytes[15] = (char)device;
    return CUDA_SUCCESS;
}

EXPORT CUresult cuDeviceGetUuid(CUuuid *uuid, CUdevice device)
{
    BEGIN(cuDeviceGetUuid);
    return END(device_uuid(uuid, device));
}

EXPORT CUresult cuDeviceGetUuid_v2(CUuuid *uuid, CUdevice device)
{
    BEGIN(cuDeviceGetUuid_v2);
    return END(device_uuid(uuid, device));
}

/* What the simulator has; any other attribute of the interface is 0, "no". */
static int attribute_value(int attribute, CUdevice device)
{
    int types = (int)setting(VMMSIM_HANDLE_TYPES);
    switch (attribute) {
    case 10: return 32;         /* WARP_SIZE */
    case 16: return 1;          /* MULTIPROCESSOR_COUNT */
    case 15:                    /* GPU_OVERLAP */
    case 19:                    /* CAN_MAP_HOST_MEMORY */
    case 31:                    /* CONCURRENT_KERNELS: streams run side by side */
    case 40:                    /* ASYNC_ENGINE_COUNT */
    case 41: return 1;          /* UNIFIED_ADDRESSING */
    case 33: return device + 1; /* PCI_BUS_ID */
    case 98:                    /* CAN_FLUSH_REMOTE_WRITES */
    case 102:                   /* VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED */
    case 122:                   /* CAN_USE_64_BIT_STREAM_MEM_OPS */
    case 123: return 1;         /* CAN_USE_STREAM_WAIT_VALUE_NOR */
    case 103: return (types & CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR) != 0;
    case 128: return (types & CU_MEM_HANDLE_TYPE_FABRIC) != 0;
    default: return 0;
    }
}

EXPORT CUresult cuDeviceGetAttribute(int *value, int attribute, CUdevice device)
{
    BEGIN(cuDeviceGetAttribute);
    if (!value || attribute <= 0 || attribute > LAST_ATTRIBUTE) return END(CUDA_ERROR_INVALID_VALUE);
    if (!device_valid(device)) return END(CUDA_ERROR_INVALID_DEVICE);
    *value = attribute_value(attribute, device);
    return END(CUDA_SUCCESS);
}

EXPORT CUresult cuDeviceComputeCapability(int *major, int *minor, CUdevice device)
{
    BEGIN(cuDeviceComputeCapability);
    if (!major || !minor) return END(CUDA_ERROR_INVALID_VALUE);
    if (!device_valid(device)) return END(CUDA_ERROR_INVALID_DEVICE);
    *major = *minor = 0; /* runs no kernels */
    return END(CUDA_SUCCESS);
}

EXPORT CUresult cuDeviceTotalMem_v2(size_t *bytes, CUdevice device)
{
    BEGIN(cuDeviceTotalMem_v2);
    if (!bytes) return END(CUDA_ERROR_INVALID_VALUE);
    if (!device_valid(device)) return END(CUDA_ERROR_INVALID_DEVICE);
    *bytes = setting(VMMSIM_MEMORY_BYTES);
    return END(CUDA_SUCCESS);
}

EXPORT CUresult cuDeviceCanAccessPeer(int *can, CUdevice device, CUdevice peer)
{
    BEGIN(cuDeviceCanAccessPeer);
    if (!can) return END(CUDA_ERROR_INVALID_VALUE);
    if (!device_valid(device) || !device_valid(peer)) return END(CUDA_ERROR_INVALID_DEVICE);
    *can = device != peer;
    return END(CUDA_SUCCESS);
}

EXPORT CUresult cuDeviceGetP2PAttribute(int *value, int attribute, CUdevice source, CUdevice destination)
{
    BEGIN(cuDeviceGetP2PAttribute);
    if (!value || attribute < 1 || attribute > 5) return END(CUDA_ERROR_INVALID_VALUE);
    if (!device_valid(source) || !device_valid(destination) || source == destination)
        return END(CUDA_ERROR_INVALID_DEVICE);
    *value = attribute == 2 || attribute == 3; /* access and native atomics */
    return END(CUDA_SUCCESS);
}

EXPORT CUresult cuDevicePrimaryCtxRetain(CUcontext *context, CUdevice device)
{
    BEGIN(cuDevicePrimaryCtxRetain);
    if (!context) return END(CUDA_ERROR_INVALID_VALUE);
    if (!device_valid(device)) return END(CUDA_ERROR_INVALID_DEVICE);
    sim.contexts[device].retained++;
    *context = &sim.contexts[device];
    return END(CUDA_SUCCESS);
}

/* The last release ends the context, and with it the device's streams and events. */
EXPORT CUresult cuDevicePrimaryCtxRelease_v2(CUdevice device)
{
    BEGIN(cuDevicePrimaryCtxRelease_v2);
    if (!device_valid(device)) return END(CUDA_ERROR_INVALID_DEVICE);
    if (sim.contexts[device].retained == 0)
        return END(misuse(CUDA_ERROR_INVALID_CONTEXT, "primary context of device %d released more often than retained",
                          device));
    if (--sim.contexts[device].retained == 0) {
        streams_cancel(device);
        events_destroy(device);
        sim.contexts[device].sticky = CUDA_SUCCESS;
    }
    return END(CUDA_SUCCESS);
}

EXPORT CUresult cuDevicePrimaryCtxGetState(CUdevice device, unsigned *flags, int *active)
{
    BEGIN(cuDevicePrimaryCtxGetState);
    if (!flags || !active) return END(CUDA_ERROR_INVALID_VALUE);
    if (!device_valid(device)) return END(CUDA_ERROR_INVALID_DEVICE);
    *flags = 0;
    *active = sim.contexts[device].retained > 0;
    return END(CUDA_SUCCESS);
}

static bool context_known(CUcontext context)
{
    for (int device = 0; device < MAX_DEVICES; device++)
        if (context == &sim.contexts[device]) return context->retained > 0;
    return false;
}

EXPORT CUresult cuCtxGetCurrent(CUcontext *context)
{
    BEGIN(cuCtxGetCurrent);
    if (!context) return END(CUDA_ERROR_INVALID_VALUE);
    *context = depth ? stack[depth - 1] : NULL;
    return END(CUDA_SUCCESS);
}

EXPORT CUresult cuCtxSetCurrent(CUcontext context)
{
    BEGIN(cuCtxSetCurrent);
    if (context && !context_known(context))
        return END(misuse(CUDA_ERROR_INVALID_CONTEXT, "cuCtxSetCurrent of %p, which is no live context",
                          (void *)context));
    if (depth == 0) depth = 1;
    stack[depth - 1] = context;
    if (!context) depth--;
    return END(CUDA_SUCCESS);
}

EXPORT CUresult cuCtxPushCurrent_v2(CUcontext context)
{
    BEGIN(cuCtxPushCurrent_v2);
    if (!context || !context_known(context)) return END(CUDA_ERROR_INVALID_CONTEXT);
    if (depth == DEEPEST_STACK) return END(CUDA_ERROR_OUT_OF_MEMORY);
    stack[depth++] = context;
    return END(CUDA_SUCCESS);
}

EXPORT CUresult cuCtxPopCurrent_v2(CUcontext *context)
{
    BEGIN(cuCtxPopCurrent_v2);
    if (depth == 0) return END(CUDA_ERROR_INVALID_CONTEXT);
    depth--;
    if (context) *context = stack[depth];
    return END(CUDA_SUCCESS);
}

static CUresult context_device(CUdevice *device, CUcontext context)
{
    if (!device) return CUDA_ERROR_INVALID_VALUE;
    if (context && !context_known(context)) return CUDA_ERROR_INVALID_CONTEXT;
    CUresult result = context ? CUDA_SUCCESS : context_any(&context);
    if (result == CUDA_SUCCESS) *device = context->device;
    return result;
}

EXPORT CUresult cuCtxGetDevice(CUdevice *device)
{
    BEGIN(cuCtxGetDevice);
    return END(context_device(device, NULL));
}

EXPORT CUresult cuCtxGetDevice_v2(CUdevice *device, CUcontext context)
{
    BEGIN(cuCtxGetDevice_v2);
    return END(context_device(device, context));
}

static CUresult context_synchronize(CUcontext context)
{
    if (context && !context_known(context)) return CUDA_ERROR_INVALID_CONTEXT;
    CUresult result = context ? context->sticky : context_usable(&context);
    return result != CUDA_SUCCESS ? result : device_synchronize(context->device);
}

EXPORT CUresult cuCtxSynchronize(void)
{
    BEGIN(cuCtxSynchronize);
    return END(context_synchronize(NULL));
}

EXPORT CUresult cuCtxSynchronize_v2(CUcontext context)
{
    BEGIN(cuCtxSynchronize_v2);
    return END(context_synchronize(context));
}

EXPORT CUresult cuCtxGetStreamPriorityRange(int *least, int *greatest)
{
    BEGIN(cuCtxGetStreamPriorityRange);
    Context *context;
    CUresult result = context_usable(&context);
    if (result != CUDA_SUCCESS) return END(result);
    if (least) *least = 0;
    if (greatest) *greatest = 0;
    return END(CUDA_SUCCESS);
}

/* Memory that crosses processes: by descriptor, or by the 64 bytes of a fabric handle. */
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "sim.h"

static const char fabric_magic[8] = "vmmfab1";

/* What the 64 bytes of a fabric handle say: where the exporter keeps the memory open. They pin nothing. */
typedef struct {
    char magic[8];
    int32_t process, descriptor;
    unsigned char uuid[16];
} FabricHandle;

_Static_assert(sizeof(FabricHandle) <= sizeof(CUmemFabricHandle), "a fabric handle is 64 bytes");

static CUresult export_fabric(const Allocation *allocation, CUmemFabricHandle *shareable)
{
    FabricHandle fabric = {.process = getpid(), .descriptor = allocation->descriptor};
    memcpy(fabric.magic, fabric_magic, sizeof fabric.magic);
    memcpy(fabric.uuid, allocation->uuid, sizeof fabric.uuid);
    memset(shareable, 0, sizeof *shareable);
    memcpy(shareable, &fabric, sizeof fabric);
    return CUDA_SUCCESS;
}

EXPORT CUresult cuMemExportToShareableHandle(void *shareable, CUmemGenericAllocationHandle id, int type,
                                             unsigned long long flags)
{
    BEGIN(cuMemExportToShareableHandle);
    const Handle *handle = handle_find(id);
    if (!handle)
        return END(misuse(CUDA_ERROR_INVALID_VALUE, "export of handle 0x%llx, which is released or was never made",
                          id));
    if (!shareable || flags != 0) return END(CUDA_ERROR_INVALID_VALUE);
    if (type == 0 || (type & (type - 1)) != 0 || !(handle->allocation->properties.requestedHandleTypes & type))
        return END(CUDA_ERROR_INVALID_VALUE);
    if (type == CU_MEM_HANDLE_TYPE_FABRIC) return END(export_fabric(handle->allocation, shareable));
    int descriptor = fcntl(handle->allocation->descriptor, F_DUPFD_CLOEXEC, 0);
    if (descriptor < 0) return END(CUDA_ERROR_OPERATING_SYSTEM);
    memcpy(shareable, &descriptor, sizeof descriptor);
    return END(CUDA_SUCCESS);
}

/* The importer opens the memory through the exporter's open descriptor: same user, exporter alive, same identity. */
static CUresult open_fabric(const void *shareable, int *descriptor)
{
    FabricHandle fabric;
    Trailer trailer;
    struct stat status;
    char path[64];
    memcpy(&fabric, shareable, sizeof fabric);
    if (memcmp(fabric.magic, fabric_magic, sizeof fabric.magic) != 0) return CUDA_ERROR_INVALID_VALUE;
    snprintf(path, sizeof path, "/proc/%d/fd/%d", fabric.process, fabric.descriptor);
    /* Look before opening: the number may by now belong to another process,
        and opening a pipe or device has effects. */
    if (stat(path, &status) != 0 || !S_ISREG(status.st_mode))
        return errno == EACCES || errno == EPERM ? CUDA_ERROR_NOT_PERMITTED : CUDA_ERROR_INVALID_VALUE;
    *descriptor = open(path, O_RDWR | O_CLOEXEC | O_NONBLOCK);
    if (*descriptor < 0) return errno == EACCES || errno == EPERM ? CUDA_ERROR_NOT_PERMITTED : CUDA_ERROR_INVALID_VALUE;
    if (trailer_read(*descriptor, &trailer) && memcmp(trailer.uuid, fabric.uuid, sizeof fabric.uuid) == 0)
        return CUDA_SUCCESS;
    close(*descriptor);
    return CUDA_ERROR_INVALID_VALUE;
}

/* Takes the descriptor. Memory that this process has already is not counted twice. */
static CUresult import_descriptor(int descriptor, int type, Handle **handle)
{
    Trailer trailer;
    CUresult result = CUDA_ERROR_INVALID_VALUE;
    Allocation *known = NULL;
    if (trailer_read(descriptor, &trailer) && (trailer.properties.requestedHandleTypes & type)) {
        result = device_valid(trailer.properties.location.id) ? CUDA_SUCCESS : CUDA_ERROR_INVALID_DEVICE;
        known = allocation_known(trailer.uuid);
    }
    if (result == CUDA_SUCCESS && !known) return handle_adopt(descriptor, &trailer, handle);
    close(descriptor);
    return result == CUDA_SUCCESS ? handle_new(known, handle) : result;
}

EXPORT CUresult cuMemImportFromShareableHandle(CUmemGenericAllocationHandle *id, void *shareable, int type)
{
    BEGIN(cuMemImportFromShareableHandle);
    int descriptor;
    CUresult result = CUDA_SUCCESS;
    if (!id) return END(CUDA_ERROR_INVALID_VALUE);
    if (type != CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR && type != CU_MEM_HANDLE_TYPE_FABRIC)
        return END(type == CU_MEM_HANDLE_TYPE_WIN32 || type == CU_MEM_HANDLE_TYPE_WIN32_KMT ? CUDA_ERROR_NOT_SUPPORTED
                                                                                            : CUDA_ERROR_INVALID_VALUE);
    if (!((int)setting(VMMSIM_HANDLE_TYPES) & type))
        return END(type == CU_MEM_HANDLE_TYPE_FABRIC ? CUDA_ERROR_NOT_PERMITTED : CUDA_ERROR_NOT_SUPPORTED);
    if (type == CU_MEM_HANDLE_TYPE_FABRIC)
        result = shareable ? open_fabric(shareable, &descriptor) : CUDA_ERROR_INVALID_VALUE;
    else if ((descriptor = fcntl((int)(intptr_t)shareable, F_DUPFD_CLOEXEC, 0)) < 0)
        result = CUDA_ERROR_INVALID_VALUE;
    Handle *handle;
    if (result == CUDA_SUCCESS) result = import_descriptor(descriptor, type, &handle);
    if (result == CUDA_SUCCESS) *id = handle->id;
    return END(result);
}

/* Stands for NVIDIA's driver in test_driver.py: the calls that Sumpter makes, declared by cuda.h, so
 * that this does not compile where the header has them otherwise. It notes what it was given. */
#include <cuda.h>
#include <pthread.h>
#include <stdlib.h>

/* Between the host's address of pinned memory and the device's. */
#define SHIFT 0x100000

CUstream waited_stream;
CUdeviceptr waited_address;
cuuint32_t waited_value;
unsigned int waited_flags;
CUstream launched_stream;
/* What the next call returns. */
CUresult outcome = CUDA_SUCCESS;

typedef struct {
    CUhostFn function;
    void *given;
} Call;

/* Whether a stream that waits as the last one was told to would go on. */
int passes(void) {
    cuuint32_t word = *(volatile cuuint32_t *)(waited_address - SHIFT);
    return waited_flags == CU_STREAM_WAIT_VALUE_GEQ && (int)(word - waited_value) >= 0;
}

CUresult CUDAAPI cuStreamWaitValue32(CUstream stream, CUdeviceptr addr, cuuint32_t value,
                                     unsigned int flags) {
    waited_stream = stream;
    waited_address = addr;
    waited_value = value;
    waited_flags = flags;
    return outcome;
}

static void *enter(void *given) {
    Call call = *(Call *)given;
    free(given);
    call.function(call.given);
    return NULL;
}

CUresult CUDAAPI cuLaunchHostFunc(CUstream hStream, CUhostFn fn, void *userData) {
    launched_stream = hStream;
    if (outcome == CUDA_SUCCESS) {
        pthread_t thread;
        Call *call = malloc(sizeof(Call));
        *call = (Call){fn, userData};
        pthread_create(&thread, NULL, enter, call);
        pthread_detach(thread);
    }
    return outcome;
}

/* Whether a thread has called the function before this returns. */
int happens_while_this_waits(CUhostFn function, void *given) {
    pthread_t thread;
    Call *call = malloc(sizeof(Call));
    *call = (Call){function, given};
    return pthread_create(&thread, NULL, enter, call) == 0 && pthread_join(thread, NULL) == 0;
}

CUresult CUDAAPI cuMemHostGetDevicePointer(CUdeviceptr *pdptr, void *p, unsigned int Flags) {
    *pdptr = (CUdeviceptr)p + SHIFT;
    return Flags == 0 ? outcome : CUDA_ERROR_INVALID_VALUE;
}

CUresult CUDAAPI cuGetErrorName(CUresult error, const char **pStr) {
    *pStr = error == CUDA_ERROR_INVALID_CONTEXT ? "CUDA_ERROR_INVALID_CONTEXT" : "another";
    return CUDA_SUCCESS;
}

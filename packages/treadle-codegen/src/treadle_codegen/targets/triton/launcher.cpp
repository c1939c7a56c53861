// Loads kernels and launches the segments of a graph through CUDA's driver API.
//
// The driver's library is opened at run time and its prototypes stand here, so that neither CUDA's headers nor a GPU is
// needed to build this file. The driver API is a stable ABI; the names with _v2 are those that cuda.h maps the plain ones to
// (CUDA Driver API reference manual, 12.9).
//
// A segment is an array of launches. Their arguments stand in the graph's table, 8 bytes each, so that the driver is given
// addresses inside the table. Nothing of a segment is launched unless all of it can be.

#include <dlfcn.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

namespace {

using Result = int;  // CUresult
using Function = void*;
using Module = void*;
using Context = void*;
using Stream = void*;
using Device = int;

constexpr Result SUCCESS = 0;
// Results of this file, outside the range of the driver's.
constexpr Result NO_DRIVER = -1;     // the library or one of its functions is missing
constexpr Result UNALIGNED = -2;     // a pointer is no multiple of the alignment that the kernels were compiled for
constexpr Result GRID_TOO_LARGE = -3;

// CUfunction_attribute and CUdevice_attribute.
constexpr int MAX_THREADS_PER_BLOCK = 0, STATIC_SHARED_BYTES = 1, LOCAL_BYTES = 3, REGISTERS = 4, MAX_DYNAMIC_SHARED_BYTES = 8;
constexpr int DEVICE_SHARED_BYTES_OPTIN = 97;
constexpr int PREFER_SHARED = 1;  // CUfunc_cache
constexpr int MOST_ARGUMENTS = 512;  // of a kernel that can be launched, hidden ones included
constexpr int DEFAULT_SHARED_BYTES = 48 << 10;  // more must be asked for (CUDA C++ Programming Guide, compute capabilities)

// CUlaunchAttribute and CUlaunchConfig.
struct LaunchAttribute {
  int id;
  char padding[4];
  union {
    char bytes[64];
    int value;
  };
};
struct LaunchConfig {
  unsigned grid[3], block[3], shared;
  Stream stream;
  LaunchAttribute* attributes;
  unsigned attribute_count;
};
constexpr int PROGRAMMATIC_STREAM_SERIALIZATION = 6;  // CUlaunchAttributeID: may begin before the kernel before it ends
constexpr int CAPABILITY_MAJOR = 75;                  // CUdevice_attribute
constexpr int FIRST_DRIVER = 12030;                   // from which on graphs record such launches

#define DRIVER(X)                                                                                                             \
  X(Result, cuInit, "cuInit", (unsigned))                                                                                     \
  X(Result, cuDeviceGet, "cuDeviceGet", (Device*, int))                                                                       \
  X(Result, cuDeviceGetAttribute, "cuDeviceGetAttribute", (int*, int, Device))                                                \
  X(Result, cuDevicePrimaryCtxRetain, "cuDevicePrimaryCtxRetain", (Context*, Device))                                         \
  X(Result, cuCtxGetCurrent, "cuCtxGetCurrent", (Context*))                                                                   \
  X(Result, cuCtxPushCurrent, "cuCtxPushCurrent_v2", (Context))                                                               \
  X(Result, cuCtxPopCurrent, "cuCtxPopCurrent_v2", (Context*))                                                                \
  X(Result, cuModuleLoadData, "cuModuleLoadData", (Module*, const void*))                                                     \
  X(Result, cuModuleGetFunction, "cuModuleGetFunction", (Function*, Module, const char*))                                     \
  X(Result, cuFuncGetAttribute, "cuFuncGetAttribute", (int*, int, Function))                                                  \
  X(Result, cuFuncSetAttribute, "cuFuncSetAttribute", (Function, int, int))                                                   \
  X(Result, cuFuncSetCacheConfig, "cuFuncSetCacheConfig", (Function, int))                                                    \
  X(Result, cuGetErrorName, "cuGetErrorName", (Result, const char**))                                                         \
  X(Result, cuGetErrorString, "cuGetErrorString", (Result, const char**))                                                     \
  X(Result, cuLaunchKernel, "cuLaunchKernel",                                                                                 \
    (Function, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, Stream, void**, void**))                  \
  X(Result, cuLaunchKernelEx, "cuLaunchKernelEx", (const LaunchConfig*, Function, void**, void**))                            \
  X(Result, cuDriverGetVersion, "cuDriverGetVersion", (int*))

#define DECLARE(type, name, symbol, arguments) type(*name) arguments;
DRIVER(DECLARE)
#undef DECLARE

char missing[256];

// Makes `context` current for a scope. Streams 0, 1 and 2 mean a stream of the current context.
struct Current {
  bool pushed = false;
  Result result = SUCCESS;
  explicit Current(Context context) {
    Context now = nullptr;
    result = cuCtxGetCurrent(&now);
    if (result == SUCCESS && now != context) {
      result = cuCtxPushCurrent(context);
      pushed = result == SUCCESS;
    }
  }
  ~Current() {
    Context before;
    if (pushed) cuCtxPopCurrent(&before);
  }
};

}  // namespace

extern "C" {

struct TreadleDimension {
  int64_t points;
  int64_t block;
  int64_t slot;  // where the table holds the points, or 0
};

struct TreadleLaunch {
  Function function;
  const int32_t* slots;  // of the run-time arguments, in order
  int32_t arguments;
  int32_t hidden;  // pointers that Triton adds behind them: scratch memory, which these kernels do not use
  int32_t threads;
  int32_t shared;
  TreadleDimension grid[3];
  int32_t early;           // whether it may begin before the kernel before it ends, for which it waits itself
  int32_t members;         // of a group, whose pointers come member by member, before the number of the member to run; else 0
  const int64_t* bytes;    // that each pointer's memory spans
  const uint8_t* written;  // whether a pointer's memory is written and may overlap what other members touch
};

struct TreadleSegment {
  Context context;
  const TreadleLaunch* launches;
  const int32_t* pointers;  // slots that must be multiples of `alignment`
  int32_t count;
  int32_t pointer_count;
  int32_t alignment;  // a power of 2
  int32_t failed;     // the launch that the last error belongs to
};

struct TreadleKernel {
  Function function;
  int32_t registers;
  int32_t local_bytes;   // per thread: spilled registers, mostly
  int32_t max_threads;
  int32_t max_shared;    // bytes that a block may have on this device
};

// Opens the driver. NO_DRIVER: `treadle_error` tells what is missing.
Result treadle_open(const char* library) {
  void* handle = dlopen(library, RTLD_NOW | RTLD_LOCAL);
  if (handle == nullptr) {
    snprintf(missing, sizeof missing, "%s", dlerror());
    return NO_DRIVER;
  }
#define FIND(type, name, symbol, arguments)                                      \
  name = reinterpret_cast<type(*) arguments>(dlsym(handle, symbol));             \
  if (name == nullptr) {                                                         \
    snprintf(missing, sizeof missing, "%s has no function " symbol, library);    \
    return NO_DRIVER;                                                            \
  }
  DRIVER(FIND)
#undef FIND
  return cuInit(0);
}

// The text of a result into `text`.
void treadle_error(Result result, char* text, int64_t size) {
  if (result == NO_DRIVER) {
    snprintf(text, size, "%s", missing);
    return;
  }
  const char *name = nullptr, *words = nullptr;
  cuGetErrorName(result, &name);
  cuGetErrorString(result, &words);
  snprintf(text, size, "%s (%s)", words ? words : "unknown error", name ? name : "?");
}

// The primary context of a device, which is the one that PyTorch uses.
Result treadle_context(int ordinal, Context* context) {
  Device device;
  Result result = cuDeviceGet(&device, ordinal);
  return result != SUCCESS ? result : cuDevicePrimaryCtxRetain(context, device);
}

// Loads one kernel of a cubin. The module stays loaded until the process ends: another thread's launch may be in flight.
// A kernel that needs more shared memory than `max_shared` is loaded and must not be launched.
Result treadle_load(int ordinal, Context context, const void* cubin, const char* name, int shared, TreadleKernel* kernel) {
  Current current(context);
  if (current.result != SUCCESS) return current.result;
  Device device;
  Module module;
  int static_shared = 0;
  Result result = cuDeviceGet(&device, ordinal);
  if (result == SUCCESS) result = cuDeviceGetAttribute(&kernel->max_shared, DEVICE_SHARED_BYTES_OPTIN, device);
  if (result == SUCCESS) result = cuModuleLoadData(&module, cubin);
  if (result == SUCCESS) result = cuModuleGetFunction(&kernel->function, module, name);
  if (result == SUCCESS) result = cuFuncGetAttribute(&kernel->registers, REGISTERS, kernel->function);
  if (result == SUCCESS) result = cuFuncGetAttribute(&kernel->local_bytes, LOCAL_BYTES, kernel->function);
  if (result == SUCCESS) result = cuFuncGetAttribute(&kernel->max_threads, MAX_THREADS_PER_BLOCK, kernel->function);
  if (result == SUCCESS) result = cuFuncGetAttribute(&static_shared, STATIC_SHARED_BYTES, kernel->function);
  if (result != SUCCESS) return result;
  kernel->max_shared -= static_shared;
  if (shared <= DEFAULT_SHARED_BYTES || shared > kernel->max_shared) return SUCCESS;
  result = cuFuncSetCacheConfig(kernel->function, PREFER_SHARED);
  if (result == SUCCESS) result = cuFuncSetAttribute(kernel->function, MAX_DYNAMIC_SHARED_BYTES, shared);
  return result;
}

// Whether memory that one member of a group writes overlaps what another one touches.
static bool treadle_overlap(const TreadleLaunch& launch, const int64_t* numbers) {
  const int pointers = launch.arguments - 1, each = pointers / launch.members;
  for (int w = 0; w < pointers; ++w) {
    if (!launch.written[w]) continue;
    const uint64_t begin = numbers[launch.slots[w]], end = begin + launch.bytes[w];
    for (int k = 0; k < pointers; ++k) {
      const uint64_t other = numbers[launch.slots[k]];
      if (other < end && begin < other + launch.bytes[k] && k / each != w / each) return true;
    }
  }
  return false;
}

// Whether kernels of a device may begin early.
Result treadle_early(int ordinal, int* early) {
  Device device;
  int major = 0, version = 0;
  Result result = cuDeviceGet(&device, ordinal);
  if (result == SUCCESS) result = cuDeviceGetAttribute(&major, CAPABILITY_MAJOR, device);
  if (result == SUCCESS) result = cuDriverGetVersion(&version);
  *early = result == SUCCESS && major >= 9 && version >= FIRST_DRIVER;
  return result;
}

// Launches a kernel; all blocks of one that begins early wait for the kernel before it.
static Result treadle_launch_one(const TreadleLaunch& launch, const unsigned* grid, Stream stream, void** parameters) {
  const unsigned threads = launch.threads, shared = launch.shared;
  if (!launch.early) return cuLaunchKernel(launch.function, grid[0], grid[1], grid[2], threads, 1, 1, shared, stream, parameters, nullptr);
  LaunchAttribute attribute = {};
  attribute.id = PROGRAMMATIC_STREAM_SERIALIZATION;
  attribute.value = 1;
  const LaunchConfig config = {{grid[0], grid[1], grid[2]}, {threads, 1, 1}, shared, stream, &attribute, 1};
  return cuLaunchKernelEx(&config, launch.function, parameters, nullptr);
}

// Launches the kernels of a segment one after the other on a stream. Alignment and grids are checked before the first launch.
Result treadle_launch(TreadleSegment* segment, char* table, Stream stream) {
  constexpr int MOST_LAUNCHES_CHECKED_ONCE = 16;
  const int64_t* numbers = reinterpret_cast<const int64_t*>(table);
  uint64_t bits = 0;
  for (int k = 0; k < segment->pointer_count; ++k) bits |= static_cast<uint64_t>(numbers[segment->pointers[k]]);
  if (bits & static_cast<uint64_t>(segment->alignment - 1)) return UNALIGNED;
  static const int64_t most[3] = {0x7fffffff, 65535, 65535};
  unsigned kept[MOST_LAUNCHES_CHECKED_ONCE][3];
  auto grid_of = [&](const TreadleLaunch& launch, unsigned* grid) {
    bool empty = false, fits = true;
    for (int d = 0; d < 3; ++d) {
      const TreadleDimension& dimension = launch.grid[d];
      const int64_t points = dimension.slot ? numbers[dimension.slot] : dimension.points;
      const int64_t programs = points <= 0 ? 0 : 1 + (points - 1) / dimension.block;
      empty |= programs == 0;
      fits &= programs <= most[d];
      grid[d] = static_cast<unsigned>(programs);
    }
    if (empty) grid[0] = 0;
    return empty || fits;
  };
  for (int k = 0; k < segment->count; ++k) {
    unsigned beyond[3];
    if (!grid_of(segment->launches[k], k < MOST_LAUNCHES_CHECKED_ONCE ? kept[k] : beyond)) {
      segment->failed = k;
      return GRID_TOO_LARGE;
    }
  }
  Current current(segment->context);
  if (current.result != SUCCESS) return current.result;
  static void* null = nullptr;
  void* parameters[MOST_ARGUMENTS];
  for (int k = 0; k < segment->count; ++k) {
    const TreadleLaunch& launch = segment->launches[k];
    unsigned computed[3];
    if (k >= MOST_LAUNCHES_CHECKED_ONCE) grid_of(launch, computed);
    const unsigned* grid = k < MOST_LAUNCHES_CHECKED_ONCE ? kept[k] : computed;
    if (grid[0] == 0) continue;
    for (int a = 0; a < launch.arguments; ++a) parameters[a] = table + 8 * launch.slots[a];
    for (int a = 0; a < launch.hidden; ++a) parameters[launch.arguments + a] = &null;
    const bool apart = launch.members && treadle_overlap(launch, numbers);
    int32_t only = apart ? 0 : -1;
    if (launch.members) parameters[launch.arguments - 1] = &only;
    do {
      const Result result = treadle_launch_one(launch, grid, stream, parameters);
      if (result != SUCCESS) {
        segment->failed = k;
        return result;
      }
    } while (apart && ++only < launch.members);
  }
  return SUCCESS;
}

int treadle_most_arguments() { return MOST_ARGUMENTS; }

}  // extern "C"

// CUDA's driver for tests: it remembers the calls as lines of text, and fails where it is told to.

#include <cstdint>
#include <cstdio>
#include <cstring>
#include <string>

static std::string calls;
static std::string failing;
static int code, optin = 232448, threads = 1024;
static int major = 8, driver = 13000;
static void* current;

static int note(const char* name, const std::string& rest = "") {
  calls += std::string(name) + rest + "\n";
  return failing == name ? code : 0;
}
static std::string number(int64_t n) { return " " + std::to_string(n); }

extern "C" {
const char* fake_calls() { return calls.c_str(); }
void fake_clear() { calls.clear(); }
void fake_fail(const char* name, int with) { failing = name; code = with; }
void fake_limits(int shared, int most_threads) { optin = shared; threads = most_threads; }
void fake_versions(int capability, int of_driver) { major = capability; driver = of_driver; }
void fake_current(void* context) { current = context; }

int cuInit(unsigned) { return note("cuInit"); }
int cuDeviceGet(int* device, int ordinal) { *device = ordinal; return note("cuDeviceGet"); }
int cuDeviceGetAttribute(int* value, int attribute, int) { *value = attribute == 97 ? optin : attribute == 75 ? major : -1; return 0; }
int cuDriverGetVersion(int* version) { *version = driver; return 0; }
int cuDevicePrimaryCtxRetain(void** context, int device) {
  *context = reinterpret_cast<void*>(static_cast<intptr_t>(0x1000 + device));
  return note("cuDevicePrimaryCtxRetain", number(device));
}
int cuCtxGetCurrent(void** context) { *context = current; return 0; }
int cuCtxPushCurrent_v2(void* context) { current = context; return note("push", number((intptr_t)context - 0x1000)); }
int cuCtxPopCurrent_v2(void** context) { *context = current; current = nullptr; return note("pop"); }
int cuModuleLoadData(void** module, const void* data) {
  *module = const_cast<void*>(data);
  return note("cuModuleLoadData");
}
int cuModuleGetFunction(void** function, void*, const char* name) {
  *function = strdup(name);
  return note("cuModuleGetFunction", std::string(" ") + name);
}
int cuFuncGetAttribute(int* value, int attribute, void*) {
  *value = attribute == 0 ? threads : attribute == 1 ? 16 : attribute == 3 ? 8 : attribute == 4 ? 32 : -1;
  return 0;
}
int cuFuncSetAttribute(void*, int attribute, int value) { return note("cuFuncSetAttribute", number(attribute) + number(value)); }
int cuFuncSetCacheConfig(void*, int config) { return note("cuFuncSetCacheConfig", number(config)); }
int cuGetErrorName(int, const char** name) { *name = "CUDA_ERROR_ASSERT"; return 0; }
int cuGetErrorString(int, const char** text) { *text = "device-side assert triggered"; return 0; }
// Kernels of these tests are named after their parameters: `k_ppild` takes two pointers, an i32, an int64 and a double.
int cuLaunchKernel(void* function, unsigned x, unsigned y, unsigned z, unsigned bx, unsigned by, unsigned bz, unsigned shared,
                   void* stream, void** parameters, void** extra) {
  const char* name = static_cast<const char*>(function);
  std::string rest = std::string(" ") + name + number(x) + number(y) + number(z) + " threads" + number((int64_t)bx * by * bz) +
                     " shared" + number(shared) + " stream" + number((intptr_t)stream) + ":";
  int k = 0;
  for (const char* kind = strchr(name, '_') + 1; *kind; ++kind, ++k) {
    if (*kind == 'i') rest += number(*static_cast<int32_t*>(parameters[k]));
    if (*kind == 'p' || *kind == 'l') rest += number(*static_cast<int64_t*>(parameters[k]));
    if (*kind == 'd') rest += " " + std::to_string(*static_cast<double*>(parameters[k]));
  }
  return note("launch", rest + (extra ? " extra" : ""));
}
struct Attribute { int id, padding, value; };
struct Config { unsigned x, y, z, bx, by, bz, shared; void* stream; Attribute* attributes; unsigned count; };
int cuLaunchKernelEx(const Config* c, void* function, void** parameters, void** extra) {
  note("early", number(c->count) + number(c->attributes->id) + number(c->attributes->value));
  return cuLaunchKernel(function, c->x, c->y, c->z, c->bx, c->by, c->bz, c->shared, c->stream, parameters, extra);
}
}

/* A libnvidia-ml.so.1 without GPUs: the functions that pynvml asks for by name, answered from the
 * file that FAKE_NVML names. The file is read again at every call, so that a test can change what
 * the "driver" says while it is in use. Lines are `key value`; a key that is not there has a
 * default.
 *
 *   count 4                      cards
 *   error.init 9                 what nvmlInit answers; likewise error.count
 *   0.utilization 55             a value of card 0
 *   0.error.utilization 3        the code which that call on card 0 answers; 0.error.all: every one
 *   0.hang.temperature 1         that call on card 0 does not return while this line is there
 *   0.mig 1, 0.mig_slots 3, 0.1.present 1, 0.1.memory_used 5     slice 1 of card 0
 *   0.pid 77, 0.pid_memory 5     one compute process, likewise 0.1.pid
 *
 * Each nvmlInit and nvmlShutdown appends a line to FAKE_NVML + ".log". With OLD_DRIVER defined the
 * functions are missing that old drivers do not have.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define CARDS 16
#define SLOTS 8
#define EXPORT __attribute__((visibility("default")))

typedef unsigned int uint;
typedef unsigned long long ull;
typedef struct { int card, slice; } device;

static device handles[CARDS][SLOTS + 1];
static int initialised_in = 0;

static int lookup(const char *key, char *value, size_t size) {
    const char *path = getenv("FAKE_NVML");
    FILE *file = path ? fopen(path, "r") : NULL;
    char line[256];
    size_t length = strlen(key);
    int found = 0;
    if (!file) return 0;
    while (!found && fgets(line, sizeof line, file)) {
        if (strncmp(line, key, length) || line[length] != ' ') continue;
        line[strcspn(line, "\n")] = 0;
        snprintf(value, size, "%s", line + length + 1);
        found = 1;
    }
    fclose(file);
    return found;
}

static ull number(const char *key, ull otherwise) {
    char value[128];
    return lookup(key, value, sizeof value) ? strtoull(value, NULL, 0) : otherwise;
}

static void name_of(const device *d, const char *what, char *key, size_t size) {
    if (d->slice < 0) snprintf(key, size, "%d.%s", d->card, what);
    else snprintf(key, size, "%d.%d.%s", d->card, d->slice, what);
}

static ull value_of(const device *d, const char *what, ull otherwise) {
    char key[128];
    name_of(d, what, key, sizeof key);
    return number(key, otherwise);
}

static void note(const char *what) {
    char path[512];
    FILE *log;
    snprintf(path, sizeof path, "%s.log", getenv("FAKE_NVML"));
    if (!(log = fopen(path, "a"))) return;
    fprintf(log, "%s %d\n", what, (int)getpid());
    fclose(log);
}

/* What a call on a device answers before it looks at any value. As in the real library, a process
 * that was forked after nvmlInit has no working connection to the driver. */
static int trouble(const device *d, const char *what) {
    char key[64];
    int code;
    if (!initialised_in) return 1;
    if (initialised_in != getpid()) return 999;
    snprintf(key, sizeof key, "hang.%s", what);
    while (value_of(d, key, 0)) usleep(2000);
    if ((code = (int)number("error.all", 0))) return code;
    if (d->slice >= 0) {
        device card = {d->card, -1};
        if ((code = (int)value_of(&card, "error.all", 0))) return code;
    }
    if ((code = (int)value_of(d, "error.all", 0))) return code;
    snprintf(key, sizeof key, "error.%s", what);
    return (int)value_of(d, key, 0);
}

EXPORT int nvmlInitWithFlags(uint flags) {
    int code;
    (void)flags;
    note("init");
    while (number("hang.init", 0)) usleep(2000);
    code = (int)number("error.init", 0);
    if (!code) initialised_in = getpid();
    return code;
}

EXPORT int nvmlShutdown(void) {
    note("shutdown");
    initialised_in = 0;
    return 0;
}

EXPORT int nvmlDeviceGetCount_v2(uint *count) {
    int code = initialised_in == getpid() ? 0 : initialised_in ? 999 : 1;
    if (!code) code = (int)number("error.all", 0);
    if (!code) code = (int)number("error.count", 0);
    *count = (uint)number("count", 1);
    return code;
}

EXPORT int nvmlDeviceGetHandleByIndex_v2(uint index, device **out) {
    device *d;
    if (index >= CARDS || index >= number("count", 1)) return 2;
    d = &handles[index][0];
    d->card = (int)index;
    d->slice = -1;
    *out = d;
    return trouble(d, "handle");
}

#define ASK(what)                              \
    int code = trouble(d, what);               \
    if (code) return code

EXPORT int nvmlDeviceGetUUID(device *d, char *out, uint size) {
    char key[64];
    ASK("uuid");
    name_of(d, "uuid", key, sizeof key);
    if (lookup(key, out, size)) return 0;
    if (d->slice < 0) snprintf(out, size, "GPU-%d", d->card);
    else snprintf(out, size, "MIG-%d-%d", d->card, d->slice);
    return 0;
}

EXPORT int nvmlDeviceGetName(device *d, char *out, uint size) {
    char key[64];
    ASK("name");
    name_of(d, "name", key, sizeof key);
    if (lookup(key, out, size)) return 0;
    snprintf(out, size, d->slice < 0 ? "Fake GPU" : "Fake GPU MIG 1g.10gb");
    return 0;
}

EXPORT int nvmlDeviceGetPciInfo_v3(device *d, void *out) {
    ASK("pci");
    memset(out, 0, 68);
    snprintf(out, 16, "0000:%02x:00.0", d->card);
    return 0;
}

typedef struct { uint gpu, memory; } utilization;
EXPORT int nvmlDeviceGetUtilizationRates(device *d, utilization *out) {
    device card = {d->card, -1};
    ASK("utilization");
    if (value_of(&card, "mig", 0)) return 3;
    out->gpu = (uint)value_of(d, "utilization", 40);
    out->memory = 0;
    return 0;
}

typedef struct { ull total, free, used; } memory_v1;
EXPORT int nvmlDeviceGetMemoryInfo(device *d, memory_v1 *out) {
    ASK("memory_v1");
    out->total = value_of(d, "memory_total", 80000);
    out->used = value_of(d, "memory_used", 20000) + value_of(d, "memory_reserved", 1000);
    out->free = out->total - out->used;
    return 0;
}

EXPORT int nvmlDeviceGetTemperature(device *d, uint sensor, uint *out) {
    ASK("temperature_old");
    if (sensor) return 2;
    *out = (uint)value_of(d, "temperature", 60);
    return 0;
}

EXPORT int nvmlDeviceGetCurrentClocksThrottleReasons(device *d, ull *out) {
    ASK("reasons_old");
    *out = value_of(d, "reasons", 0);
    return 0;
}

#ifndef OLD_DRIVER
typedef struct { uint version; ull total, reserved, free, used; } memory_v2;
EXPORT int nvmlDeviceGetMemoryInfo_v2(device *d, memory_v2 *out) {
    ASK("memory");
    if (out->version != (0x02000000u | sizeof *out)) return 25;
    out->total = value_of(d, "memory_total", 80000);
    out->reserved = value_of(d, "memory_reserved", 1000);
    out->used = value_of(d, "memory_used", 20000);
    out->free = out->total - out->used - out->reserved;
    return 0;
}

typedef struct { uint version, sensor; int temperature; } temperature_v1;
EXPORT int nvmlDeviceGetTemperatureV(device *d, temperature_v1 *out) {
    ASK("temperature");
    if (out->version != (0x01000000u | sizeof *out)) return 25;
    if (out->sensor) return 2;
    out->temperature = (int)value_of(d, "temperature", 60);
    return 0;
}

EXPORT int nvmlDeviceGetCurrentClocksEventReasons(device *d, ull *out) {
    ASK("reasons");
    *out = value_of(d, "reasons", 0);
    return 0;
}
#endif

EXPORT int nvmlDeviceGetTemperatureThreshold(device *d, uint which, uint *out) {
    ASK("slowdown");
    *out = which == 1 ? (uint)value_of(d, "slowdown", 90) : 95;
    return 0;
}

EXPORT int nvmlDeviceGetClockInfo(device *d, uint which, uint *out) {
    ASK("clock");
    *out = which == 1 ? (uint)value_of(d, "clock", 1500) : 7;
    return 0;
}

EXPORT int nvmlDeviceGetMaxClockInfo(device *d, uint which, uint *out) {
    ASK("clock_max");
    *out = which == 1 ? (uint)value_of(d, "clock_max", 1980) : 7;
    return 0;
}

EXPORT int nvmlDeviceGetPowerUsage(device *d, uint *out) {
    ASK("power");
    *out = (uint)value_of(d, "power", 350500);
    return 0;
}

EXPORT int nvmlDeviceGetEnforcedPowerLimit(device *d, uint *out) {
    ASK("power_limit");
    *out = (uint)value_of(d, "power_limit", 700000);
    return 0;
}

EXPORT int nvmlDeviceGetMigMode(device *d, uint *current, uint *pending) {
    char key[64], ignored[64];
    ASK("mig");
    name_of(d, "mig", key, sizeof key);
    if (!lookup(key, ignored, sizeof ignored)) return 3;
    *current = *pending = (uint)value_of(d, "mig", 0);
    return 0;
}

EXPORT int nvmlDeviceGetMaxMigDeviceCount(device *d, uint *out) {
    ASK("mig_slots");
    *out = (uint)value_of(d, "mig_slots", 7);
    return 0;
}

EXPORT int nvmlDeviceGetMigDeviceHandleByIndex(device *d, uint index, device **out) {
    device *slice;
    ASK("mig_handle");
    if (index >= SLOTS) return 2;
    slice = &handles[d->card][index + 1];
    slice->card = d->card;
    slice->slice = (int)index;
    if (!value_of(slice, "present", 0)) return 6;
    *out = slice;
    return 0;
}

static int one_process(device *d, uint *count, uint *pid, ull *memory) {
    uint room = *count;
    ASK("processes");
    *count = (uint)value_of(d, "pid", 0) ? 1 : 0;
    if (!*count) return 0;
    if (room < 1) return 7;
    *pid = (uint)value_of(d, "pid", 0);
    *memory = value_of(d, "pid_memory", ~0ull);
    return 0;
}

typedef struct { uint pid; ull memory; uint gpu_instance, compute_instance; } process;
EXPORT int nvmlDeviceGetComputeRunningProcesses_v2(device *d, uint *count, process *out) {
    process none;
    if (!out) out = &none;
    return one_process(d, count, &out->pid, &out->memory);
}

#ifndef OLD_DRIVER
EXPORT int nvmlDeviceGetComputeRunningProcesses_v3(device *d, uint *count, process *out) {
    return nvmlDeviceGetComputeRunningProcesses_v2(d, count, out);
}
#endif

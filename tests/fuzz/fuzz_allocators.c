/* libFuzzer target: the first byte picks an allocator and mode, the second how often reservations
 * are refused, the rest are operations of the model in tests/allocators/model.h.
 *
 *   cmake -B build/fuzz -G Ninja -DCMAKE_C_COMPILER=clang -DKVLAB_FUZZ=ON
 *   ninja -C build/fuzz fuzz_allocators && build/fuzz/tests/fuzz_allocators -max_total_time=60 */
#include <stdint.h>
#include <stdio.h>

#define MODEL_FAIL(...) (fprintf(stderr, __VA_ARGS__), fputc('\n', stderr), abort())
#include "tests/allocators/model.h"
#include "tests/allocators/model_cases.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    static model m;
    if (size < 3) return 0;
    const model_case *c = &model_cases[data[0] % N_MODEL_CASES];
    memset(&m, 0, sizeof m);
    if (kvl_allocator_find(c->name, &m.a) != KVL_OK) return 0;
    m.config = c->config;
    m.deny_in_16 = data[1] % 4;
    m.bytes = data + 2;
    m.n_bytes = size - 2;
    model_open(&m);
    for (int i = 0; i < 2000 && m.n_bytes; i++) model_step(&m);
    m.deny_in_16 = 0;
    model_close(&m);
    return 0;
}

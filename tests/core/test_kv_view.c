#include "tests/test.h"

#include "core/kv_view.h"

static void offsets_pass_2_to_the_31(void **state) {
    /* vllm 1486, 50427: 65,536 blocks of [32, 16, 16, 8] elements. */
    int32_t table[2] = {65535, 40000}, lens[1] = {32};
    char byte;
    kvl_kv_view view = {.k_pool = &byte,
                        .v_pool = &byte,
                        .k_dtype = KVL_BF16,
                        .v_dtype = KVL_BF16,
                        .n_seqs = 1,
                        .n_kv_heads = 32,
                        .head_dim = 128,
                        .kv_lens = lens,
                        .page_tokens = 16,
                        .token_stride = 128,
                        .head_stride = 2048,
                        .page_stride = 65536,
                        .page_table = table,
                        .table_stride = 2,
                        .n_pages = 65536,
                        .pool_elems = 65536ll * 65536};
    assert_ok(kvl_kv_view_check(&view));
    assert_int_equal(kvl_kv_offset(&view, 0, 5, 31), 65535ll * 65536 + 31 * 2048 + 5 * 128);
    int64_t offset;
    assert_int_equal(kvl_kv_run(&view, 0, 5, 32, 0, &offset), 11);
    assert_int_equal(kvl_kv_run(&view, 0, 16, 20, 0, &offset), 4);
    assert_int_equal(offset, 40000ll * 65536);
    table[0] = 65536;
    assert_refused(kvl_kv_view_check(&view), KVL_ERR_INPUT, "id 65536 of 65536");
    table[0] = 0;
    view.pool_elems = 100;
    assert_refused(kvl_kv_view_check(&view), KVL_ERR_INPUT, "past the pool of 100");
    lens[0] = 33;
    assert_refused(kvl_kv_view_check(&view), KVL_ERR_INPUT, "33 tokens, its page table holds 32");
    view.page_stride = INT64_MAX;
    lens[0] = 32;
    assert_refused(kvl_kv_view_check(&view), KVL_ERR_INPUT, "past the pool");
}

static void contiguous_views(void **state) {
    int32_t lens[2] = {3, 0};
    int64_t slabs[2] = {64, -1};
    char byte;
    kvl_kv_view view = {.k_pool = &byte,
                        .v_pool = &byte,
                        .k_dtype = KVL_F32,
                        .v_dtype = KVL_F32,
                        .n_seqs = 2,
                        .n_kv_heads = 2,
                        .head_dim = 4,
                        .kv_lens = lens,
                        .page_tokens = 8,
                        .token_stride = 4,
                        .head_stride = 32,
                        .slab_start = slabs,
                        .pool_elems = 128};
    assert_ok(kvl_kv_view_check(&view));
    assert_int_equal(kvl_kv_offset(&view, 0, 2, 1), 64 + 32 + 8);
    slabs[0] = 128;
    assert_refused(kvl_kv_view_check(&view), KVL_ERR_INPUT, "slab at 128");
    slabs[0] = 64;
    lens[0] = 9;
    assert_refused(kvl_kv_view_check(&view), KVL_ERR_INPUT, "9 tokens, its slab 8");
}

static void csr_is_converted_or_refused(void **state) {
    int32_t indptr[4] = {0, 2, 2, 3}, indices[3] = {7, 1, 4}, last[3] = {5, 0, 16};
    int32_t table[6], lens[3];
    assert_ok(kvl_kv_from_csr(3, 16, indptr, indices, last, 2, table, lens));
    int32_t want_table[6] = {7, 1, -1, -1, 4, -1}, want_lens[3] = {21, 0, 16};
    assert_memory_equal(table, want_table, sizeof table);
    assert_memory_equal(lens, want_lens, sizeof lens);
    last[0] = 17; /* flashinfer 320 */
    assert_refused(kvl_kv_from_csr(3, 16, indptr, indices, last, 2, table, lens), KVL_ERR_INPUT,
                   "kv_last_page_len[0] = 17");
    last[0] = 0;
    assert_refused(kvl_kv_from_csr(3, 16, indptr, indices, last, 2, table, lens), KVL_ERR_INPUT,
                   "kv_last_page_len[0] = 0");
    last[0] = 5;
    indptr[1] = 3;
    assert_refused(kvl_kv_from_csr(3, 16, indptr, indices, last, 2, table, lens), KVL_ERR_INPUT,
                   "kv_indptr[0..1]");
}

static void slot_mapping(void **state) {
    int32_t table[4] = {3, 0, 2, -1}, lens[2] = {5, 2}, start[2] = {3, 0};
    char byte;
    kvl_kv_view view = {.k_pool = &byte,
                        .v_pool = &byte,
                        .k_dtype = KVL_F32,
                        .v_dtype = KVL_F32,
                        .n_seqs = 2,
                        .n_kv_heads = 1,
                        .head_dim = 1,
                        .kv_lens = lens,
                        .page_tokens = 4,
                        .page_table = table,
                        .table_stride = 2,
                        .token_stride = 1,
                        .head_stride = 4,
                        .page_stride = 4,
                        .pool_elems = 16};
    int64_t slots[4], want[4] = {15, 0, 8, 9};
    assert_ok(kvl_kv_slot_mapping(&view, start, slots, 4));
    assert_memory_equal(slots, want, sizeof slots);
    assert_refused(kvl_kv_slot_mapping(&view, start, slots, 3), KVL_ERR_INPUT, "holds 3 slots");
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(offsets_pass_2_to_the_31),
        cmocka_unit_test(contiguous_views),
        cmocka_unit_test(csr_is_converted_or_refused),
        cmocka_unit_test(slot_mapping),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

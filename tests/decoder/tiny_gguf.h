/* A small, complete llama GGUF in F32, with metadata and tensors that tests can change. */
#ifndef KVL_TESTS_TINY_GGUF_H
#define KVL_TESTS_TINY_GGUF_H

#include "tests/decoder/gguf_maker.h"

/* 2 layers, hidden 16, 2 query heads and 1 KV head of 8, intermediate 24, 12 tokens. */
enum { TINY_HIDDEN = 16, TINY_HEAD = 8, TINY_INTER = 24, TINY_VOCAB = 12, TINY_LAYERS = 2 };

typedef struct tiny_key {
    const char *key;
    uint32_t type;
    uint64_t bits; /* of a number */
    const char *text;
} tiny_key;

typedef struct tiny_tensor {
    char name[64];
    uint32_t n_dims, type;
    uint64_t dims[4];
} tiny_tensor;

typedef struct tiny_gguf {
    tiny_key keys[32];
    size_t n_keys;
    tiny_tensor tensors[64];
    size_t n_tensors;
} tiny_gguf;

static inline uint64_t f32_bits(float x) {
    uint32_t bits;
    memcpy(&bits, &x, sizeof bits);
    return bits;
}

/* Sets or replaces a key. */
static inline void tiny_set(tiny_gguf *t, const char *key, uint32_t type, uint64_t bits,
                            const char *text) {
    size_t i = 0;
    while (i < t->n_keys && strcmp(t->keys[i].key, key) != 0) i++;
    t->keys[i] = (tiny_key){key, type, bits, text};
    if (i == t->n_keys) t->n_keys++;
}

static inline void tiny_drop_key(tiny_gguf *t, const char *key) {
    for (size_t i = 0; i < t->n_keys; i++)
        if (strcmp(t->keys[i].key, key) == 0) t->keys[i] = t->keys[--t->n_keys];
}

static inline tiny_tensor *tiny_find(tiny_gguf *t, const char *name) {
    for (size_t i = 0; i < t->n_tensors; i++)
        if (strcmp(t->tensors[i].name, name) == 0) return &t->tensors[i];
    return NULL;
}

static inline tiny_tensor *tiny_add(tiny_gguf *t, const char *name, uint64_t dim0, uint64_t dim1) {
    tiny_tensor *tensor = &t->tensors[t->n_tensors++];
    *tensor = (tiny_tensor){.n_dims = dim1 ? 2 : 1, .dims = {dim0, dim1 ? dim1 : 1, 1, 1}};
    snprintf(tensor->name, sizeof tensor->name, "%s", name);
    return tensor;
}

static inline tiny_gguf tiny_make(void) {
    tiny_gguf t = {0};
    tiny_set(&t, "general.architecture", T_STRING, 0, "llama");
    tiny_set(&t, "llama.block_count", T_U32, TINY_LAYERS, NULL);
    tiny_set(&t, "llama.context_length", T_U32, 64, NULL);
    tiny_set(&t, "llama.embedding_length", T_U32, TINY_HIDDEN, NULL);
    tiny_set(&t, "llama.feed_forward_length", T_U32, TINY_INTER, NULL);
    tiny_set(&t, "llama.attention.head_count", T_U32, 2, NULL);
    tiny_set(&t, "llama.attention.head_count_kv", T_U32, 1, NULL);
    tiny_set(&t, "llama.attention.layer_norm_rms_epsilon", T_F32, f32_bits(1e-5f), NULL);
    tiny_set(&t, "llama.rope.freq_base", T_F32, f32_bits(1000.0f), NULL);
    tiny_set(&t, "llama.rope.dimension_count", T_U32, TINY_HEAD, NULL);
    tiny_set(&t, "tokenizer.ggml.bos_token_id", T_U32, 1, NULL);
    tiny_set(&t, "tokenizer.ggml.eos_token_id", T_U32, 2, NULL);
    tiny_add(&t, "token_embd.weight", TINY_HIDDEN, TINY_VOCAB);
    for (int i = 0; i < TINY_LAYERS; i++) {
        const struct {
            const char *name;
            uint64_t dim0, dim1;
        } rows[] = {{"attn_norm", TINY_HIDDEN, 0},
                    {"attn_q", TINY_HIDDEN, 2 * TINY_HEAD},
                    {"attn_k", TINY_HIDDEN, TINY_HEAD},
                    {"attn_v", TINY_HIDDEN, TINY_HEAD},
                    {"attn_output", 2 * TINY_HEAD, TINY_HIDDEN},
                    {"ffn_norm", TINY_HIDDEN, 0},
                    {"ffn_gate", TINY_HIDDEN, TINY_INTER},
                    {"ffn_up", TINY_HIDDEN, TINY_INTER},
                    {"ffn_down", TINY_INTER, TINY_HIDDEN}};
        for (size_t r = 0; r < sizeof rows / sizeof *rows; r++) {
            char name[64];
            snprintf(name, sizeof name, "blk.%d.%s.weight", i, rows[r].name);
            tiny_add(&t, name, rows[r].dim0, rows[r].dim1);
        }
    }
    tiny_add(&t, "output_norm.weight", TINY_HIDDEN, 0);
    return t;
}

static inline uint64_t tiny_elems(const tiny_tensor *tensor) {
    return tensor->dims[0] * tensor->dims[1] * tensor->dims[2] * tensor->dims[3];
}

/* Element e of tensor number i is 1000 i + e. Tensors of another type than F32 get zeros. */
static inline float tiny_value(size_t i, uint64_t e) {
    return 1000.0f * (float)i + (float)e;
}

static inline void tiny_write_key(kvl_buffer *b, const tiny_key *k) {
    put_key(b, k->key, k->type);
    if (k->type == T_STRING)
        put_string(b, k->text);
    else if (k->type == T_U8 || k->type == T_I8 || k->type == T_BOOL)
        put_u8(b, (uint8_t)k->bits);
    else if (k->type == T_U64 || k->type == T_I64 || k->type == T_F64)
        put_u64(b, k->bits);
    else
        put_u32(b, (uint32_t)k->bits);
}

static inline void tiny_write(const tiny_gguf *t, kvl_buffer *b) {
    put_magic(b, 3, t->n_tensors, t->n_keys);
    for (size_t i = 0; i < t->n_keys; i++) tiny_write_key(b, &t->keys[i]);
    uint64_t offset = 0;
    for (size_t i = 0; i < t->n_tensors; i++) {
        const tiny_tensor *tensor = &t->tensors[i];
        put_tensor(b, tensor->name, tensor->n_dims, tensor->dims, tensor->type, offset);
        offset = (offset + tiny_elems(tensor) * 4 + 31) / 32 * 32;
    }
    put_padding(b, 32);
    for (size_t i = 0; i < t->n_tensors; i++) {
        uint64_t n = tiny_elems(&t->tensors[i]);
        for (uint64_t e = 0; e < n; e++)
            put_f32(b, t->tensors[i].type == 0 ? tiny_value(i, e) : 0.0f);
        if (i + 1 < t->n_tensors) put_padding(b, 32);
    }
}

#endif

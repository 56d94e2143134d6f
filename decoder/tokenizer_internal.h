/* What the two readers (tokenizer_gguf.c, tokenizer_json.c) fill and what encode and decode read.
 *
 * A reader calls kvl_tok_new, sets tokens, merges, pre-tokenizer steps and flags through the
 * functions below, then kvl_tok_finish, which checks the whole and builds the look-up tables. After
 * that the tokenizer is read-only and may be shared by threads. */
#ifndef KVL_DECODER_TOKENIZER_INTERNAL_H
#define KVL_DECODER_TOKENIZER_INTERNAL_H

#include <jansson.h>

#include "decoder/pretokenizer.h"
#include "decoder/tokenizer.h"

enum {
    KVL_TOKEN_MAX_BYTES = 4096, /* stored text of one token; real ones stay below 600 */
    KVL_ADDED_MAX_BYTES = 1024, /* text of an added token: bounds the trie walk at each byte */
    KVL_VOCAB_MAX = 1 << 22,
    KVL_SPECIAL_AFFIX_MAX = 8, /* tokens that a post-processor puts around a text */
};

typedef enum kvl_token_kind {
    KVL_TOKEN_ABSENT = 0, /* a hole in the ids */
    KVL_TOKEN_NORMAL,
    KVL_TOKEN_ADDED,   /* recognised in text, printed as ordinary text */
    KVL_TOKEN_SPECIAL, /* recognised in text, dropped by skip_special */
} kvl_token_kind;

typedef struct kvl_token {
    uint64_t text_at, decoded_at; /* into the tokenizer's byte store */
    uint32_t text_bytes, decoded_bytes;
    uint8_t kind;
    bool after_normaliser; /* added token looked for in the normalised text (HF `normalized`) */
} kvl_token;

/* u64 -> two u32, open addressing, capacity a power of two at most 2/3 full. Merge pairs and trie
 * edges live in it. */
typedef struct kvl_map64_slot {
    uint64_t key;
    uint32_t first, second;
} kvl_map64_slot;
typedef struct kvl_map64 {
    kvl_map64_slot *slots;
    uint64_t mask, used;
} kvl_map64;

#define KVL_MAP64_EMPTY UINT64_MAX

static inline uint64_t kvl_map64_hash(uint64_t key) {
    key = (key ^ (key >> 32)) * 0xd6e8feb86659fd93u;
    return key ^ (key >> 32);
}

/* NULL when absent. */
static inline const kvl_map64_slot *kvl_map64_find(const kvl_map64 *map, uint64_t key) {
    if (!map->slots) return NULL;
    for (uint64_t i = kvl_map64_hash(key) & map->mask;; i = (i + 1) & map->mask) {
        if (map->slots[i].key == key) return &map->slots[i];
        if (map->slots[i].key == KVL_MAP64_EMPTY) return NULL;
    }
}

/* Adds or overwrites. */
kvl_status kvl_map64_set(kvl_map64 *map, uint64_t key, uint32_t first, uint32_t second);

/* Trie over the texts of added tokens: node 0 is the root, edge (node, byte) -> (child, id + 1 of
 * the token that ends at the child, or 0). */
typedef struct kvl_trie {
    kvl_map64 edges;
    uint32_t n_nodes;
    bool starts[256]; /* bytes that leave the root, to pass over plain text quickly */
} kvl_trie;

struct kvl_tokenizer {
    char *label; /* file, for messages */
    kvl_token *tokens;
    int32_t n_tokens;
    kvl_buffer store; /* all texts */
    int32_t *by_text; /* open addressing over xxh3 of the text; -1 = empty */
    uint64_t by_text_mask;
    kvl_map64 merges;      /* (left << 32 | right) -> (rank, result) */
    int32_t byte_ids[256]; /* symbol of each byte, -1 where the vocabulary has none */
    int32_t unknown_id;    /* stands for such a byte; -1 = the text is refused */
    bool ignore_merges;    /* a whole pre-token found in the vocabulary is taken as it is */
    bool nfc;
    kvl_trie raw, normalised; /* added tokens by where they are looked for */
    kvl_pretokenizer *pre;
    int32_t bos_id, eos_id;
    int32_t prefix[KVL_SPECIAL_AFFIX_MAX], suffix[KVL_SPECIAL_AFFIX_MAX]; /* of add_special */
    int32_t n_prefix, n_suffix;
};

kvl_status kvl_tok_new(const char *label, int32_t n_tokens, kvl_tokenizer **out);

/* Sets token `id` (in range, not set before). Normal texts are in the byte-level alphabet and are
 * decoded here; a text with a character outside it stands for its own UTF-8 bytes. */
kvl_status kvl_tok_set(kvl_tokenizer *tok, int32_t id, const char *text, size_t bytes,
                       kvl_token_kind kind, bool after_normaliser);

/* Builds the text index and byte symbols; after this, finding works and merges can be added. */
kvl_status kvl_tok_index(kvl_tokenizer *tok);

/* Adds the merge of rank `rank`; both halves and the result must be in the vocabulary. `field` is
 * how the file calls merges. */
kvl_status kvl_tok_merge(kvl_tokenizer *tok, const char *field, uint32_t rank, const char *left,
                         size_t left_bytes, const char *right, size_t right_bytes);

/* Checks the whole and builds the tries of added tokens. */
kvl_status kvl_tok_finish(kvl_tokenizer *tok);

int32_t kvl_tok_find(const kvl_tokenizer *tok, const char *text, size_t bytes);

/* The byte-level alphabet of GPT-2: byte <-> code point. kvl_byte_of gives -1 outside it. */
uint32_t kvl_byte_code(uint8_t byte);
int kvl_byte_of(uint32_t code);

/* A growing list of ids. */
typedef struct kvl_ids {
    int32_t *data;
    int64_t n, capacity;
} kvl_ids;
kvl_status kvl_ids_add(kvl_ids *ids, int32_t id);

/* Byte-pair merging of one pre-token, appended to `ids`. `scratch` grows and is reused. `offset` of
 * the piece in the whole text is for messages. */
typedef struct kvl_bpe_scratch {
    int32_t *ids, *prev, *next; /* symbols as a doubly linked list over byte positions */
    uint64_t *heap;             /* rank << 32 | position */
    size_t capacity, n_heap, heap_capacity;
    kvl_buffer mapped;
} kvl_bpe_scratch;
void kvl_bpe_scratch_free(kvl_bpe_scratch *scratch);
kvl_status kvl_bpe_encode(const kvl_tokenizer *tok, const uint8_t *text, size_t bytes,
                          size_t offset, kvl_bpe_scratch *scratch, kvl_ids *ids);

/* NFC of valid UTF-8, appended to `out`. Linear: runs of combining marks are sorted by counting. */
kvl_status kvl_nfc(const char *text, size_t bytes, kvl_buffer *out);

/* From parsed tokenizer.json and tokenizer_config.json (NULL when there is none). */
kvl_status kvl_tokenizer_from_json(const char *label, const json_t *root, const json_t *config,
                                   kvl_tokenizer **out);

#endif

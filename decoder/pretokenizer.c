#include "decoder/pretokenizer.h"

#define PCRE2_CODE_UNIT_WIDTH 8 /* before the header, which asks for it */
#include <pcre2.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "core/buffer.h"
#include "core/clock.h"

/* The public patterns, as in GPT-2's encoder.py and the tokenizer.json files of Llama 3 and Qwen 2.
 */
const char kvl_pattern_gpt2[] = "'s|'t|'re|'ve|'m|'ll|'d| ?\\p{L}+| ?\\p{N}+| "
                                "?[^\\s\\p{L}\\p{N}]+|\\s+(?!\\S)|\\s+";
const char kvl_pattern_llama3[] =
    "(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\\r\\n\\p{L}\\p{N}]?\\p{L}+|\\p{N}{1,3}|"
    " ?[^\\s\\p{L}\\p{N}]+[\\r\\n]*|\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+";
const char kvl_pattern_qwen2[] =
    "(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\\r\\n\\p{L}\\p{N}]?\\p{L}+|\\p{N}|"
    " ?[^\\s\\p{L}\\p{N}]+[\\r\\n]*|\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+";
const char kvl_pattern_digit[] = "\\p{N}";
const char kvl_pattern_digits[] = "\\p{N}+";

enum {
    MATCH_LIMIT = 2000000, /* backtracking points in one call */
    DEPTH_LIMIT = 200000,
    HEAP_LIMIT_KIB = 65536,
};

/* Each call stays below MATCH_LIMIT, but a text may need as many calls as it has characters. So all
 * calls together have a limit too, in processor time of this thread: what real patterns take a
 * hundred times over, and independent of what else the machine does. */
#define BUDGET_NS UINT64_C(2000000000)
#define BUDGET_NS_PER_BYTE UINT64_C(10000)

struct kvl_pretokenizer {
    pcre2_code *steps[KVL_PRETOKENIZER_MAX_STEPS];
    int n_steps;
    pcre2_match_context *context;
};

/* One split in progress. */
typedef struct splitter {
    const kvl_pretokenizer *pre;
    pcre2_match_data *match[KVL_PRETOKENIZER_MAX_STEPS];
    kvl_piece_fn piece;
    void *user;
    const kvl_split_clock *clock;
} splitter;

kvl_status kvl_pretokenizer_create(kvl_pretokenizer **out) {
    kvl_pretokenizer *pre = calloc(1, sizeof *pre);
    if (pre) pre->context = pcre2_match_context_create(NULL);
    if (!pre || !pre->context) {
        free(pre);
        return kvl_fail(KVL_ERR_OOM, "pre-tokenizer: out of memory");
    }
    pcre2_set_match_limit(pre->context, MATCH_LIMIT);
    pcre2_set_depth_limit(pre->context, DEPTH_LIMIT);
    pcre2_set_heap_limit(pre->context, HEAP_LIMIT_KIB);
    *out = pre;
    return KVL_OK;
}

void kvl_pretokenizer_free(kvl_pretokenizer *pre) {
    if (!pre) return;
    for (int i = 0; i < pre->n_steps; i++) pcre2_code_free(pre->steps[i]);
    pcre2_match_context_free(pre->context);
    free(pre);
}

/* White_Space of Unicode, which is what Oniguruma's \s means; PCRE2's has U+180E besides. */
#define SPACE_CLASS "\\t-\\r\\x{85}\\p{Z}"
/* Oniguruma's word characters; PCRE2 10.42 leaves out marks and connectors. */
#define WORD_CLASS "\\p{L}\\p{M}\\p{Nd}\\p{Nl}\\p{Pc}"

/* Rewrites one escape `\c`; false when its meaning here is another than in the file's engine. */
static bool translate_escape(char c, bool in_class, kvl_buffer *out) {
    if (c == 's' || c == 'w') {
        if (!in_class) kvl_buffer_text(out, "[");
        kvl_buffer_text(out, c == 's' ? SPACE_CLASS : WORD_CLASS);
        if (!in_class) kvl_buffer_text(out, "]");
        return true;
    }
    if ((c == 'S' || c == 'W') && !in_class) {
        kvl_buffer_printf(out, "[^%s]", c == 'S' ? SPACE_CLASS : WORD_CLASS);
        return true;
    }
    if (c == '\0') return false; /* the pattern ends in a backslash */
    bool letter = (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z');
    if (letter && !strchr("dDpPrntfvxuabAzZ", c)) return false;
    if (c == 'v' || c == 'u' || (c == 'b' && !in_class)) return false;
    const char text[2] = {'\\', c};
    kvl_buffer_add(out, text, 2);
    return true;
}

static kvl_status translate(const char *label, const char *pattern, size_t bytes, kvl_buffer *out) {
    bool in_class = false;
    for (size_t i = 0; i < bytes; i++) {
        char c = pattern[i], after = i + 1 < bytes ? pattern[i + 1] : '\0';
        if (c == '\\') {
            if (!translate_escape(after, in_class, out))
                return kvl_fail(KVL_ERR_UNSUPPORTED, "%s: pattern byte %zu: escape \\%c%s", label,
                                i, after, in_class ? " in a class" : "");
            i++;
            continue;
        }
        if (in_class && (c == '[' || (c == '&' && after == '&')))
            return kvl_fail(KVL_ERR_UNSUPPORTED, "%s: pattern byte %zu: nested class", label, i);
        if (!in_class && c == '(' && after == '*')
            return kvl_fail(KVL_ERR_UNSUPPORTED, "%s: pattern byte %zu: control verb", label, i);
        if (!in_class && c == '[' &&
            (after == ']' || (after == '^' && i + 2 < bytes && pattern[i + 2] == ']')))
            return kvl_fail(KVL_ERR_UNSUPPORTED, "%s: pattern byte %zu: class opens with ]", label,
                            i);
        if (!in_class && c == '[')
            in_class = true;
        else if (in_class && c == ']')
            in_class = false;
        kvl_buffer_add(out, &c, 1);
    }
    if (out->failed) return kvl_fail(KVL_ERR_OOM, "%s: out of memory", label);
    return KVL_OK;
}

kvl_status kvl_pretokenizer_add(kvl_pretokenizer *pre, const char *label, const char *pattern,
                                size_t bytes) {
    if (pre->n_steps == KVL_PRETOKENIZER_MAX_STEPS)
        return kvl_fail(KVL_ERR_UNSUPPORTED, "%s: more than %d steps", label,
                        KVL_PRETOKENIZER_MAX_STEPS);
    if (bytes == 0 || bytes > KVL_PATTERN_MAX_BYTES)
        return kvl_fail(KVL_ERR_INPUT, "%s: pattern of %zu bytes: 1 to %d", label, bytes,
                        KVL_PATTERN_MAX_BYTES);
    kvl_buffer text = {0};
    kvl_status status = translate(label, pattern, bytes, &text);
    if (status != KVL_OK) {
        kvl_buffer_free(&text);
        return status;
    }
    int error = 0;
    PCRE2_SIZE offset = 0;
    pcre2_code *code =
        pcre2_compile((PCRE2_SPTR)text.data, text.bytes,
                      PCRE2_UTF | PCRE2_UCP | PCRE2_NEVER_BACKSLASH_C, &error, &offset, NULL);
    kvl_buffer_free(&text);
    if (!code) {
        char why[128] = "";
        pcre2_get_error_message(error, (PCRE2_UCHAR *)why, sizeof why);
        return kvl_fail(KVL_ERR_INPUT, "%s: pattern: %s near byte %zu", label, why, (size_t)offset);
    }
    /* Without a just-in-time compiler the interpreter does the same work, more slowly. */
    (void)pcre2_jit_compile(code, PCRE2_JIT_COMPLETE);
    pre->steps[pre->n_steps++] = code;
    return KVL_OK;
}

static int match_at(const splitter *s, int step, const uint8_t *text, size_t bytes, size_t at) {
    int rc = pcre2_match(s->pre->steps[step], text, bytes, at, PCRE2_NO_UTF_CHECK, s->match[step],
                         s->pre->context);
    /* The compiled code's stack is small; the interpreter's heap has a limit of its own. */
    if (rc == PCRE2_ERROR_JIT_STACKLIMIT)
        rc = pcre2_match(s->pre->steps[step], text, bytes, at, PCRE2_NO_UTF_CHECK | PCRE2_NO_JIT,
                         s->match[step], s->pre->context);
    return rc;
}

static uint64_t cpu_ns(void) {
    struct timespec now;
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
    return (uint64_t)now.tv_sec * 1000000000u + (uint64_t)now.tv_nsec;
}

kvl_split_clock kvl_split_clock_start(size_t text_bytes) {
    return (kvl_split_clock){.start_ns = kvl_now_ns(),
                             .start_cpu_ns = cpu_ns(),
                             .budget_ns = BUDGET_NS + text_bytes * BUDGET_NS_PER_BYTE};
}

/* The wall clock is cheap to read and never runs behind the thread's own. */
static bool is_over(const kvl_split_clock *clock) {
    return kvl_now_ns() - clock->start_ns > clock->budget_ns &&
           cpu_ns() - clock->start_cpu_ns > clock->budget_ns;
}

static kvl_status split_step(const splitter *s, int step, const uint8_t *text, size_t bytes) {
    if (bytes == 0) return KVL_OK;
    if (step == s->pre->n_steps) return s->piece(s->user, text, bytes);
    size_t done = 0, at = 0; /* before `done` all is handed on; the next search starts at `at` */
    while (at < bytes) {
        if (is_over(s->clock))
            return kvl_fail(KVL_ERR_INPUT,
                            "pre-tokenizer pattern, step %d: time limit exceeded at byte %zu of a "
                            "text of %zu",
                            step, at, bytes);
        int rc = match_at(s, step, text, bytes, at);
        if (rc == PCRE2_ERROR_NOMATCH) break;
        if (rc < 0) {
            char why[128] = "";
            pcre2_get_error_message(rc, (PCRE2_UCHAR *)why, sizeof why);
            return kvl_fail(KVL_ERR_INPUT,
                            "pre-tokenizer pattern, step %d: %s at byte %zu of a text of %zu", step,
                            why, at, bytes);
        }
        const PCRE2_SIZE *range = pcre2_get_ovector_pointer(s->match[step]);
        size_t begin = range[0], end = range[1];
        KVL_TRY(split_step(s, step + 1, text + done, begin - done));
        KVL_TRY(split_step(s, step + 1, text + begin, end - begin));
        done = at = end;
        if (end == begin && at < bytes) do
                at++;
            while (at < bytes && (text[at] & 0xc0) == 0x80);
    }
    return split_step(s, step + 1, text + done, bytes - done);
}

kvl_status kvl_pretokenizer_split(const kvl_pretokenizer *pre, const uint8_t *text, size_t bytes,
                                  const kvl_split_clock *clock, kvl_piece_fn piece, void *user) {
    splitter s = {.pre = pre, .piece = piece, .user = user, .clock = clock};
    kvl_status status = KVL_OK;
    for (int i = 0; i < pre->n_steps && status == KVL_OK; i++) {
        s.match[i] = pcre2_match_data_create(1, NULL);
        if (!s.match[i]) status = kvl_fail(KVL_ERR_OOM, "pre-tokenizer: out of memory");
    }
    if (status == KVL_OK) status = split_step(&s, 0, text, bytes);
    for (int i = 0; i < pre->n_steps; i++) pcre2_match_data_free(s.match[i]);
    return status;
}

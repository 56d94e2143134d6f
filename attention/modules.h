/* The attention modules that attention/registry.c lists. */
#ifndef KVL_ATTENTION_MODULES_H
#define KVL_ATTENTION_MODULES_H

#include "attention/attention.h"

extern const kvl_attention kvl_attention_reference, kvl_attention_eager, kvl_attention_sdpa,
    kvl_attention_flash;

#endif

/* The calibration pass: a text through the float32 model, and the largest |K| and |V| of each layer
 * and head that came of it. */
#ifndef KVL_DECODER_KV_CALIBRATE_H
#define KVL_DECODER_KV_CALIBRATE_H

#include "decoder/model.h"

/* ids [n_ids], 1 to config.max_position. KVL_ERR_INPUT: a K or V that is not finite. */
kvl_status kvl_kv_calibrate(const kvl_model *model, const int32_t *ids, int64_t n_ids,
                            kvl_kv_scales **out);

#endif

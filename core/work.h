/* What a kernel call must do at least: the numerator of every GB/s and GFLOP/s figure.
 * Bytes are unique bytes: each input byte counted once however often it is read again. */
#ifndef KVL_CORE_WORK_H
#define KVL_CORE_WORK_H

typedef struct kvl_work {
    double read_bytes;
    double write_bytes;
    double flops; /* a multiply-add counts two */
} kvl_work;

#endif

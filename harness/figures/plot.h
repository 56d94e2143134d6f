/* Figures through gnuplot: CSV in, SVG and PNG out, scripts in plots/. */
#ifndef KVL_HARNESS_PLOT_H
#define KVL_HARNESS_PLOT_H

#include <stdbool.h>

#include "core/status.h"
#include "harness/figures/figure.h"
#include "harness/figures/ratio.h"
#include "harness/figures/side.h"
#include "harness/figures/waste.h"

typedef struct kvl_plot_options {
    const char *base;    /* files are <base>.csv, .svg and .png */
    const char *title;   /* NULL: from metric and fixed axes */
    const char *scripts; /* folder of the .gp files; NULL: the one this build knows */
    bool log_x;          /* logarithmic x even where the values do not double */
} kvl_plot_options;

/* Writes the three files, or none: under temporary names beside them, renamed when all are whole,
 * so that a failure leaves what was there before. The same figure gives the same bytes.
 * KVL_ERR_INPUT when gnuplot is missing (names the package), KVL_ERR_IO when a file cannot be
 * written. */
kvl_status kvl_plot_figure(const kvl_figure *figure, const kvl_plot_options *options);
/* The same for ratios, drawn by ratio.gp; log_x plays no part. */
kvl_status kvl_plot_ratios(const kvl_ratios *ratios, const kvl_plot_options *options);
/* The same for side files, drawn by ledger.gp or map.gp. */
kvl_status kvl_plot_side(const kvl_side *side, const kvl_plot_options *options);
/* The same for waste by kind, drawn by waste.gp. */
kvl_status kvl_plot_waste(const kvl_waste *waste, const kvl_plot_options *options);

#endif

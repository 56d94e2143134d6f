# One line a series over a numeric x, in panels. Reads <base>.csv; see style.gp and plots/README.md.
#   base title x_label y_label, arrays panel_names series_names, n_panels n_series, scale y_top,
#   x_first x_last log_x x_ticks
n_legend = n_series
tick_height = 44.0
load scripts."/style.gp"

do for [d = 1:2] {
    @device
    set multiplot
    @headline
    do for [p = 1:n_panels] {
        @place
        set xlabel x_label offset 0,0.4
        if (log_x) {
            set logscale x 2
            set xrange [x_first / 1.15:x_last * 1.15]
        } else {
            set xrange [x_first - 0.04 * (x_last - x_first):x_last + 0.04 * (x_last - x_first)]
        }
        eval "set xtics nomirror out (".x_ticks.")"
        mine(panel, s, i, v) = (panel == p && s == i) ? v : NaN
        plot for [i = 1:n_series] base.".csv" \
                 using (mine(column("panel_id"), column("series_id"), i, column("x"))):(column("y") / scale) \
                 with linespoints ls i, \
             for [i = 1:n_series] "" \
                 using (mine(column("panel_id"), column("series_id"), i, column("x"))):(column("y_lo") / scale):(0):((column("y_hi") - column("y_lo")) / scale) \
                 with vectors heads size screen 0.003,90 lw 1.2 lc rgb colours[i] dt 1, \
             for [i = 1:n_series] "" \
                 using (mine(column("panel_id"), column("series_id"), i, column("x"))):(0.02 * y_top):(stringcolumn("outcome") eq "ok" ? "" : stringcolumn("outcome")) \
                 with labels left rotate by 90 tc rgb colours[i] font ",10"
        unset label
    }
    @strip_start
    plot for [i = 1:n_series] NaN with linespoints ls i title series_names[i]
    unset multiplot
    unset output
}

# Clusters of bars over names, one bar a series, in panels. Reads <base>.csv; see style.gp.
n_legend = n_series
tick_height = 44.0
load scripts."/style.gp"
bar = 0.84 / n_series

do for [d = 1:2] {
    @device
    set multiplot
    @headline
    do for [p = 1:n_panels] {
        @place
        set xlabel x_label offset 0,0.4
        set xrange [0.5:n_x + 0.5]
        set xtics nomirror out ("" 0)
        do for [k = 1:n_x] { set xtics add (x_names[k] k) }
        at(x, s) = x + (s - (n_series + 1) / 2.0) * bar
        mine(panel, s, i, v) = (panel == p && s == i) ? v : NaN
        plot for [i = 1:n_series] base.".csv" \
                 using (mine(column("panel_id"), column("series_id"), i, at(column("x_id"), i))):(column("y") / scale):(bar * 0.9) \
                 with boxes fill pattern fill_patterns[i] lw 1.5 lc rgb colours[i], \
             for [i = 1:n_series] "" \
                 using (mine(column("panel_id"), column("series_id"), i, at(column("x_id"), i))):(column("y_lo") / scale):(0):((column("y_hi") - column("y_lo")) / scale) \
                 with vectors heads size screen 0.003,90 lw 1.2 lc rgb "#000000" dt 1, \
             for [i = 1:n_series] "" \
                 using (mine(column("panel_id"), column("series_id"), i, at(column("x_id"), i))):(0.02 * y_top):(stringcolumn("outcome") eq "ok" ? "" : stringcolumn("outcome")) \
                 with labels left rotate by 90 tc rgb colours[i] font ",10"
        unset label
    }
    @strip_start
    plot for [i = 1:n_series] NaN with boxes fill pattern fill_patterns[i] lw 1.5 lc rgb colours[i] title series_names[i]
    unset multiplot
    unset output
}

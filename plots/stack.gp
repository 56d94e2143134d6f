# Bars of one trial each, split into attention, linear layers and the rest. Bars of one x stand
# together. Reads <base>.csv; see style.gp.
array parts[3] = ["attention", "matmul", "other"]
array part_names[3] = ["attention", "linear layers", "other"]
array part_patterns[3] = [3, 1, 0]
n_legend = 3
tick_height = 84.0
load scripts."/style.gp"

do for [d = 1:2] {
    @device
    set multiplot
    @headline
    do for [p = 1:n_panels] {
        @place
        unset xlabel
        set xrange [0:n_x * (n_series + 1)]
        set xtics nomirror out rotate by 25 right ("" -1)
        do for [k = 1:n_x] {
            do for [i = 1:n_series] { set xtics add (series_names[i] (k - 1) * (n_series + 1) + i) }
            set label k x_name." ".x_names[k] at (k - 1) * (n_series + 1) + (n_series + 1) / 2.0, y_top * 0.97 center font ",12"
        }
        at(x, s) = (x - 1) * (n_series + 1) + s
        mine(panel, v) = panel == p ? v : NaN
        plot base.".csv" \
                 using (mine(column("panel_id"), at(column("x_id"), column("series_id")))):((column(parts[1]) + column(parts[2]) + column(parts[3])) / scale):(0.7) \
                 with boxes fill pattern part_patterns[3] lw 1.5 lc rgb colours[4], \
             "" using (mine(column("panel_id"), at(column("x_id"), column("series_id")))):((column(parts[1]) + column(parts[2])) / scale):(0.7) \
                 with boxes fill solid 1.0 noborder lc rgb "#FFFFFF", \
             "" using (mine(column("panel_id"), at(column("x_id"), column("series_id")))):((column(parts[1]) + column(parts[2])) / scale):(0.7) \
                 with boxes fill pattern part_patterns[2] lw 1.5 lc rgb colours[1], \
             "" using (mine(column("panel_id"), at(column("x_id"), column("series_id")))):(column(parts[1]) / scale):(0.7) \
                 with boxes fill solid 1.0 noborder lc rgb "#FFFFFF", \
             "" using (mine(column("panel_id"), at(column("x_id"), column("series_id")))):(column(parts[1]) / scale):(0.7) \
                 with boxes fill pattern part_patterns[1] lw 1.5 lc rgb colours[2], \
             "" using (mine(column("panel_id"), at(column("x_id"), column("series_id")))):(column("y_lo") / scale):(0):((column("y_hi") - column("y_lo")) / scale) \
                 with vectors heads size screen 0.003,90 lw 1.2 lc rgb "#000000" dt 1, \
             "" using (mine(column("panel_id"), at(column("x_id"), column("series_id")))):(0.02 * y_top):(stringcolumn("outcome") eq "ok" ? "" : stringcolumn("outcome")) \
                 with labels left rotate by 90 font ",10"
        unset label
    }
    @strip_start
    plot NaN with boxes fill pattern part_patterns[1] lw 1.5 lc rgb colours[2] title part_names[1], \
         NaN with boxes fill pattern part_patterns[2] lw 1.5 lc rgb colours[1] title part_names[2], \
         NaN with boxes fill pattern part_patterns[3] lw 1.5 lc rgb colours[4] title part_names[3]
    unset multiplot
    unset output
}

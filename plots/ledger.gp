# The ledger over time: what every slot of the pool is, stacked, one panel a trial. Reads <base>.csv
# (columns of a --series file, panel_id first); see style.gp.
#   base title, array panel_names, n_panels
array parts[6] = ["live", "reserved", "internal", "cached", "padding", "external"]
array part_names[6] = ["live: holds a token", "reserved: will be written", "internal: never written", "cached", "padding", "external: free, cannot serve"]
array part_colours[6] = ["#0072B2", "#56B4E9", "#D55E00", "#009E73", "#7F7F7F", "#E69F00"]
n_series = 6
n_legend = 8
tick_height = 66.0
y_label = "thousand slots"
load scripts."/style.gp"

do for [d = 1:2] {
    @device
    set multiplot
    @headline
    do for [p = 1:n_panels] {
        y_top = panel_tops[p] * 1.04
        @place
        set xlabel x_label offset 0,0.4
        set xrange [0:panel_ends[p]]
        set xtics nomirror out 0,round_step(panel_ends[p])
        mine(v) = column("panel_id") == p ? v : NaN
        sum_to(k) = ((k >= 1 ? column("live") : 0) + (k >= 2 ? column("reserved") : 0) + (k >= 3 ? column("internal") : 0) \
                  + (k >= 4 ? column("cached") : 0) + (k >= 5 ? column("padding") : 0) + (k >= 6 ? column("external") : 0)) / 1000
        # A bucket is a step: its mean from its first moment to the next bucket's.
        plot for [k = 6:1:-1] base.".csv" using (mine(column("time_s"))):(sum_to(k)) \
                 with fillsteps fill solid 1.0 noborder lc rgb part_colours[k], \
             "" using (mine(column("time_s"))):(column("pool_max") / 1000) with steps lw 1.5 lc rgb "#000000" dt 2, \
             "" using (mine(column("time_s"))):(column("live_max") / 1000) with steps lw 1 lc rgb "#000000" dt 1
        unset label
    }
    @strip_start
    plot for [k = 1:6] NaN with boxes fill solid 1.0 noborder lc rgb part_colours[k] title part_names[k], \
         NaN with lines lw 1.5 lc rgb "#000000" dt 2 title "pool", \
         NaN with lines lw 1 lc rgb "#000000" dt 1 title "live, highest of a bucket"
    unset multiplot
    unset output
}

# Waste by kind: one bar a trial, what the slots of its pool are, in per cent. Reads <base>.csv,
# whose places count from the top; see style.gp.
#   base title, n_places
n_panels = 1
n_series = 7
n_legend = 8
tick_height = 44.0
load scripts."/style.gp"
array parts[7] = ["live", "reserved", "internal", "cached", "padding", "external", "free"]
array part_names[7] = ["live: holds a token", "reserved: will be written", "internal: never written", "cached", "padding", "external: free, cannot serve", "free"]
array part_colours[7] = ["#0072B2", "#56B4E9", "#D55E00", "#009E73", "#7F7F7F", "#E69F00", "#E8E8E8"]

row = 30.0
foot = 58.0 + strip
width = 900
height = 44.0 + foot + row * n_places
do for [d = 1:2] {
    @device
    set multiplot
    set label 1000 title at screen 0.5,(1 - 20.0 / height) center font ',15'
    set lmargin at screen 0.27
    set rmargin at screen 0.97
    set tmargin at screen (1 - 40.0 / height)
    set bmargin at screen (foot / height)
    set xrange [0:100]
    set yrange [n_places + 0.5:0.5]
    unset ytics
    set border 3 lc rgb "#404040"
    set xtics nomirror out 0,20,100
    set xlabel "share of the pool (%)" offset 0,0.3
    set key noautotitle
    start(k) = (k > 1 ? column("live") : 0) + (k > 2 ? column("reserved") : 0) + (k > 3 ? column("internal") : 0) \
             + (k > 4 ? column("cached") : 0) + (k > 5 ? column("padding") : 0) + (k > 6 ? column("external") : 0)
    plot for [k = 1:7] base.".csv" \
             using (start(k)):(column("place")):(start(k)):(start(k) + column(parts[k])):(column("place") - 0.38):(column("place") + 0.38) \
             with boxxyerror fill solid 1.0 noborder lc rgb part_colours[k], \
         "" using (column("live") > 8 ? column("live") / 2 : column("live") + 3):(column("place")):(sprintf("%.1f", column("live"))) \
             with labels center font ",12" tc rgb "#FFFFFF", \
         "" using (0):(column("place")):(stringcolumn("label")) with labels right offset -0.8,0 font ",12"
    unset label
    @strip_start
    plot for [k = 1:7] NaN with boxes fill solid 1.0 noborder lc rgb part_colours[k] title part_names[k]
    unset multiplot
    unset output
}

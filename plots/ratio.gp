# One bar a work item and system on a logarithmic axis from 1: to the right kvlab is ahead. Reads
# <base>.csv, whose places count from the top; see style.gp.
#   base title, n_places, x_low x_high
n_panels = 1
n_legend = 1
tick_height = 44.0
load scripts."/style.gp"

row = 22.0
head = 50.0
foot = 70.0
width = 900
height = head + foot + row * n_places
names = 0.41
ticks = "0.01 0.02 0.05 0.1 0.2 0.5 1 2 5 10 20 50 100 200 500 1000"

do for [d = 1:2] {
    @device
    set title title font ",15" offset 0,-0.3
    set lmargin at screen names
    set rmargin at screen 0.985
    set tmargin at screen (1 - head / height)
    set bmargin at screen (foot / height)
    set logscale x
    set xrange [x_low:x_high]
    set yrange [n_places + 0.5:0.5]
    unset ytics
    set border 1 lc rgb "#404040"
    set xtics nomirror out ("" x_low)
    do for [t in ticks] { if (t + 0 > x_low && t + 0 < x_high) { set xtics add (t t + 0) } }
    set xlabel "kvlab's speed, multiple of the other's" offset 0,0.3
    set grid xtics lc rgb "#D0D0D0" lw 1 dt 1
    set arrow 1 from 1, graph 0 to 1, graph 1 nohead lw 1.5 lc rgb "#404040" front
    set key noautotitle
    least(a, b) = a < b ? a : b
    most(a, b) = a > b ? a : b
    is(kind) = stringcolumn("kind") eq kind
    ratio(ahead) = is("system") && (column("ratio") >= 1) == ahead ? column("ratio") : NaN
    plot for [ahead = 0:1] base.".csv" \
             using (ratio(ahead)):(column("place")):(least(1, column("ratio"))):(most(1, column("ratio"))):(column("place") - 0.36):(column("place") + 0.36) \
             with boxxyerror fill pattern (ahead ? 3 : 1) lw 1.5 lc rgb colours[ahead ? 1 : 2], \
         "" using (is("system") ? column("lo") : NaN):(column("place")):(column("hi") - column("lo")):(0) \
             with vectors heads size screen 0.003,90 lw 1.2 lc rgb "#000000" dt 1, \
         "" using (is("system") ? most(1, column("hi")) : NaN):(column("place")):(sprintf("%.2f", column("ratio"))) \
             with labels left offset 0.8,0 font ",11", \
         "" using (is("system") && stringcolumn("outcome") ne "ok" ? 1 : NaN):(column("place")):(stringcolumn("outcome")) \
             with labels left offset 0.8,0 font ",11" tc rgb "#606060", \
         "" using (is("work") ? NaN : x_low):(column("place")):(stringcolumn("label")) \
             with labels right offset -0.8,0 font ",12", \
         "" using (is("work") ? x_low : NaN):(column("place")):(stringcolumn("label")) \
             with labels right offset -0.8,0 font ",12" tc rgb colours[1]
    unset arrow
    unset output
}

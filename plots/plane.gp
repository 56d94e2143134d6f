# Points on a plane: colour and first word of the legend by the first column, shape by the second. Reads <base>.csv with
# columns weights, kv_dtype, mib, mean_kld; y is logarithmic. From a shell: see experiments/formats/quality_bytes.sh.
#   base title x_label y_label
array colours[6] = ["#000000", "#56B4E9", "#0072B2", "#D55E00", "#E69F00", "#009E73"]
array points[6] = [1, 2, 4, 5, 9, 7]
weights = "f32 f16 bf16 nf4 nf4_dq fp4"
formats = "f32 f16 bf16 fp8_e5m2 fp8_e4m3 int8"
set datafile separator comma
set datafile columnheaders
set encoding utf8
set border 3 lc rgb '#404040'
set tics nomirror out
set grid lc rgb '#D0D0D0' lw 1 dt 1
set logscale y
set format y '%g'
set xlabel x_label
set ylabel y_label
set title title
set offsets graph 0.03, graph 0.03
set key outside right top Left reverse spacing 1.15 samplen 1
mine(w, k, i, j, v) = (w eq word(weights, i) && k eq word(formats, j)) ? v : NaN
do for [d = 1:2] {
    if (d == 1) {
        set terminal svg size 860,520 noenhanced font 'sans,13' background '#FFFFFF'
        set output base.'.svg'
    } else {
        set terminal pngcairo size 1720,1040 noenhanced font 'sans,13' fontscale 2 linewidth 2 pointscale 2 background '#FFFFFF'
        set output base.'.png'
    }
    plot for [i = 1:6] for [j = 1:6] base.'.csv' \
             using 3:(mine(strcol(1), strcol(2), i, j, column(4))) with points pt points[j] ps 1.2 lc rgb colours[i] notitle, \
         for [i = 1:6] NaN with points pt 5 ps 1.2 lc rgb colours[i] title 'weights '.word(weights, i), \
         for [j = 1:6] NaN with points pt points[j] ps 1.2 lc rgb '#404040' title 'KV '.word(formats, j)
    unset output
}

# For systems whose C library is older than the one here: the environment's QCLS_SYSROOT names a folder with a Debian or
# Ubuntu as old as they are, and the files of its g++. The compilers stay those of this system, which know newer
# processors; headers, start-up objects and libraries come from there. Debian's compilers look for all but the C headers
# beside themselves, whatever --sysroot says, so that each place is named here.
set(root "$ENV{QCLS_SYSROOT}")
if(NOT root STREQUAL "")
    file(GLOB found "${root}/usr/lib/gcc/*/*/libstdc++.so")
    if(NOT found MATCHES "^[^;]*/([^/;]+)/([^/;]+)/libstdc[+][+][.]so$")
        message(FATAL_ERROR "qcls-gguf: QCLS_SYSROOT=${root} has to hold one usr/lib/gcc/*/*/libstdc++.so, and has "
            "'${found}': docs/building.md says how to make such a folder")
    endif()
    set(triple "${CMAKE_MATCH_1}")
    set(version "${CMAKE_MATCH_2}")
    set(flags "--sysroot=${root} -B${root}/usr/lib/${triple}/ -L${root}/usr/lib/gcc/${triple}/${version}")
    string(APPEND CMAKE_C_FLAGS_INIT " ${flags}")
    string(APPEND CMAKE_CXX_FLAGS_INIT " ${flags} -nostdinc++")
    foreach(headers c++/${version} ${triple}/c++/${version} c++/${version}/backward)
        string(APPEND CMAKE_CXX_FLAGS_INIT " -isystem ${root}/usr/include/${headers}")
    endforeach()
    message(STATUS "qcls-gguf: for the C library of ${root}")
endif()

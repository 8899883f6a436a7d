# What a choice of architectures means for this project's kernels. docs/building.md says what to choose.

# Puts into `result` what is to be said of a list as in CMAKE_CUDA_ARCHITECTURES; empty where there is nothing.
# The kernels are on by default in code for 7.5 and for 8.0 to 9.0, which was measured (mmq_direct_graph.cu). A GPU runs the
# newest code of the list that is not newer than itself.
function(qcls_judge_architectures result)
    set(unmeasured "")
    set(measured FALSE)
    set(for_t4 FALSE)
    foreach(architecture ${ARGN})
        if(NOT architecture MATCHES "^([0-9]+)([0-9])[af]?(-real|-virtual)?$")  # a word, such as all or native
            set(${result} "" PARENT_SCOPE)
            return()
        endif()
        set(number "${CMAKE_MATCH_1}${CMAKE_MATCH_2}")
        if(number LESS_EQUAL 75)
            set(for_t4 TRUE)
        endif()
        if(number EQUAL 75 OR (number GREATER_EQUAL 80 AND number LESS_EQUAL 90))
            set(measured TRUE)
        elseif(number GREATER 90)
            list(APPEND unmeasured "${CMAKE_MATCH_1}.${CMAKE_MATCH_2}")
        endif()
    endforeach()
    list(JOIN unmeasured " and " unmeasured)
    set(text "")
    if(unmeasured)
        string(APPEND text "code for ${unmeasured} has this project's kernels, but leaves them off until "
            "QCLS_MMQ_DIRECT=1 is set, since nobody has measured them there: `make kernels` does. ")
        if(NOT measured)
            string(APPEND text "CUDAARCHS=75 has them on, by code that the driver compiles at the first start. ")
        endif()
    endif()
    if(NOT for_t4)
        string(APPEND text "A T4 (7.5) cannot run this build. ")
    endif()
    string(STRIP "${text}" text)
    set(${result} "${text}" PARENT_SCOPE)
endfunction()
